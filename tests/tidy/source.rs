//! The parsed sources of all crates: module trees, paths that are used, definitions. Code under `#[cfg(test)]` is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// A crate's own sources.
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Files by module path; the root's is empty.
    pub(crate) files: BTreeMap<Vec<String>, File>,
}

/// One source file.
#[derive(Default)]
pub(crate) struct File {
    /// Path from the repository's root.
    pub(crate) name: String,
    /// Paths that begin with `crate`, `super`, `self` or a child module.
    pub(crate) paths: BTreeSet<Vec<String>>,
    /// Names that `use` brings in, with the path of each.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Modules that are imported as a whole (`use x::*`).
    pub(crate) globs: Vec<Vec<String>>,
    /// Structs with named fields.
    pub(crate) structs: Vec<Struct>,
    /// Names of all types, functions, constants, modules and fields.
    pub(crate) names: BTreeSet<String>,
}

/// A struct with named fields.
pub(crate) struct Struct {
    pub(crate) name: String,
    pub(crate) fields: usize,
    pub(crate) derives: BTreeSet<String>,
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository's root")
}

/// The folders of the workspace's crates, as its manifest lists them.
fn members(root: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the workspace's manifest");
    let list = manifest
        .split("members = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    let mut folders = Vec::new();
    for member in list.expect("a list of members").split('"').skip(1).step_by(2) {
        match member.strip_suffix("/*") {
            Some(all) => {
                let entries = fs::read_dir(root.join(all)).expect("a folder of crates");
                folders.extend(entries.flatten().map(|e| e.path()));
            }
            None => folders.push(root.join(member)),
        }
    }
    folders.sort();
    folders
}

/// All crates of the workspace that have a `src` folder.
pub(crate) fn crates() -> Vec<Crate> {
    let root = root();
    let mut found = Vec::new();
    let folders = members(&root);
    for folder in folders.iter().filter(|f| f.join("Cargo.toml").exists()) {
        let name = folder
            .strip_prefix(&root)
            .expect("below the root")
            .display()
            .to_string();
        for entry in ["src/lib.rs", "src/main.rs"]
            .map(|f| folder.join(f))
            .iter()
            .filter(|f| f.exists())
        {
            let mut files = BTreeMap::new();
            read_module(
                &root,
                entry,
                entry.parent().expect("a folder"),
                Vec::new(),
                &mut files,
            );
            found.push(Crate {
                name: name.clone(),
                files,
            });
        }
    }
    assert!(found.len() > 25, "only {} crates found", found.len());
    found
}

fn read_module(
    root: &Path,
    file: &Path,
    below: &Path,
    module: Vec<String>,
    files: &mut BTreeMap<Vec<String>, File>,
) {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let syntax = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut reader = Reader {
        children: children(&syntax),
        ..Reader::default()
    };
    reader.visit_file(&syntax);
    reader.file.name = file
        .strip_prefix(root)
        .expect("below the root")
        .display()
        .to_string();
    for child in &reader.children {
        let flat = below.join(format!("{child}.rs"));
        let path = if flat.exists() {
            flat
        } else {
            below.join(child).join("mod.rs")
        };
        if path.exists() {
            let inner = [&module[..], std::slice::from_ref(child)].concat();
            read_module(root, &path, &below.join(child), inner, files);
        }
    }
    files.insert(module, reader.file);
}

/// Modules in files of their own.
fn children(file: &syn::File) -> BTreeSet<String> {
    let modules = file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(m) if m.content.is_none() && !is_test(&m.attrs) => Some(m.ident.to_string()),
        _ => None,
    });
    modules.collect()
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let list = a.meta.require_list();
        a.path().is_ident("test")
            || (a.path().is_ident("cfg") && list.is_ok_and(|l| l.tokens.to_string().starts_with("test")))
    })
}

#[derive(Default)]
struct Reader {
    file: File,
    children: BTreeSet<String>,
}

impl Reader {
    fn path(&mut self, path: Vec<String>) {
        let first = path.first().map(String::as_str).unwrap_or_default();
        let inner = ["crate", "super", "self"].contains(&first) || self.children.contains(first);
        if inner && path.len() > 1 {
            self.file.paths.insert(path);
        }
    }

    fn tree(&mut self, tree: &syn::UseTree, mut before: Vec<String>) {
        match tree {
            syn::UseTree::Path(p) => {
                before.push(p.ident.to_string());
                self.tree(&p.tree, before);
            }
            syn::UseTree::Name(n) if n.ident == "self" => {
                self.import(before.last().cloned().unwrap_or_default(), before)
            }
            syn::UseTree::Name(n) => {
                before.push(n.ident.to_string());
                self.import(n.ident.to_string(), before);
            }
            syn::UseTree::Rename(r) => {
                before.push(r.ident.to_string());
                self.import(r.rename.to_string(), before);
            }
            syn::UseTree::Glob(_) => {
                self.file.globs.push(before.clone());
                before.push("*".into());
                self.path(before);
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| self.tree(t, before.clone())),
        }
    }

    fn import(&mut self, name: String, path: Vec<String>) {
        self.file.imports.insert(name, path.clone());
        self.path(path);
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let (attributes, name) = match item {
            syn::Item::Mod(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
            syn::Item::Struct(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Enum(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Trait(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Const(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Static(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Type(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Impl(i) => (&i.attrs, None),
            syn::Item::Use(i) => (&i.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if is_test(attributes) {
            return;
        }
        self.file.names.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        if !is_test(&f.attrs) {
            self.file.names.insert(f.sig.ident.to_string());
            visit::visit_impl_item_fn(self, f);
        }
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        self.file
            .names
            .extend(field.ident.as_ref().map(ToString::to_string));
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        self.file.names.insert(variant.ident.to_string());
        visit::visit_variant(self, variant);
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        if let syn::Fields::Named(fields) = &item.fields {
            let derives = item.attrs.iter().filter(|a| a.path().is_ident("derive"));
            let words = derives.filter_map(|a| Some(a.meta.require_list().ok()?.tokens.to_string()));
            let derives = words.flat_map(|w| w.split(',').map(|d| d.trim().to_owned()).collect::<Vec<_>>());
            self.file.structs.push(Struct {
                name: item.ident.to_string(),
                fields: fields.named.len(),
                derives: derives.collect(),
            });
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.tree(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.path(path.segments.iter().map(|s| s.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

impl Crate {
    /// The module that defines the target of `path` in `module`; none if the path leads out of the crate.
    pub(crate) fn resolve(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        self.resolve_within(module, path, 8)
    }

    fn resolve_within(&self, module: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        if depth == 0 {
            return Some(module.to_vec());
        }
        let mut at = module.to_vec();
        let mut rest = path;
        let relative = !["crate", "super", "self"].contains(&path.first()?.as_str());
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "super" => {
                    at.pop()?;
                }
                "self" => {}
                _ => break,
            }
            rest = after;
        }
        if relative && !self.is_module(&at, path.first()?) {
            return None;
        }
        while let Some((first, after)) = rest.split_first() {
            if self.is_module(&at, first) {
                at.push(first.clone());
                rest = after;
                continue;
            }
            // An imported name belongs to the module that defines it.
            let file = self.files.get(&at)?;
            if let Some(import) = file.imports.get(first) {
                return self.resolve_within(&at, import, depth - 1).or(Some(at));
            }
            break;
        }
        Some(at)
    }

    fn is_module(&self, parent: &[String], name: &str) -> bool {
        let mut child = parent.to_vec();
        child.push(name.to_owned());
        self.files.contains_key(&child)
    }
}
