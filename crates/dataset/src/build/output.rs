//! Writes datasets: first under temporary names, then renames all of them to the requested names.

use super::encode::{Encoded, EncodedPart};
use super::skipped::Skipped;
use super::split::Split;
use super::{Build, Built};
use crate::error::DataError;
use crate::index::{IndexBuilder, TokenType};
use crate::sidecar::{Sidecar, with_suffix};
use crate::tokenizer::Tokenizer;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How the tokens of a tokenizer are stored.
pub(super) fn token_type(tokenizer: &Tokenizer) -> TokenType {
    TokenType::for_vocabulary(tokenizer.vocabulary())
}

/// The datasets of a build. Incomplete ones are removed when this is dropped.
pub(super) struct Outputs {
    /// One for each set of the split; none for a set without a share.
    datasets: Vec<Option<Output>>,
    /// The folder of the tokenizer's files, if there are any.
    tokenizer: Option<Renamed>,
    /// The set of the document that is being written.
    open: usize,
    token_type: TokenType,
}

impl Outputs {
    pub(super) fn create(request: &Build) -> Result<Outputs, DataError> {
        let prefixes: Vec<Option<PathBuf>> = match request.split {
            None => vec![Some(request.output.clone())],
            Some(split) => (0..Split::NAMES.len())
                .map(|set| {
                    split
                        .has(set)
                        .then(|| with_name(&request.output, Split::NAMES[set]))
                })
                .collect(),
        };
        let files = prefixes
            .iter()
            .flatten()
            .flat_map(|prefix| ["bin", "json", "idx"].map(|extension| with_suffix(prefix, extension)));
        let folder =
            (!request.tokenizer.files().is_empty()).then(|| with_suffix(&request.output, "tokenizer"));
        let exists = |path: &PathBuf| !request.overwrite && path.exists();
        if let Some(path) = files.chain(folder.clone()).find(exists) {
            return Err(DataError::Exists(path));
        }
        if let Some(parent) = request.output.parent() {
            fs::create_dir_all(parent).map_err(DataError::io("create", parent))?;
        }
        let create = |prefix: Option<PathBuf>| prefix.map(Output::create).transpose();
        Ok(Outputs {
            datasets: prefixes.into_iter().map(create).collect::<Result<_, _>>()?,
            tokenizer: folder.map(Renamed::new),
            open: 0,
            token_type: token_type(&request.tokenizer),
        })
    }

    pub(super) fn write(&mut self, encoded: Encoded) -> Result<(), DataError> {
        let mut rest = encoded.bytes.as_slice();
        let width = self.token_type.width();
        for part in encoded.parts {
            self.open = part.set.unwrap_or(self.open);
            // The number of tokens fits in memory.
            let bytes = rest.split_off(..usize::try_from(part.tokens).unwrap_or(0) * width);
            // Only sets with a share get documents.
            if let (Some(bytes), Some(Some(output))) = (bytes, self.datasets.get_mut(self.open)) {
                output.write(bytes, &part)?;
            }
        }
        Ok(())
    }

    /// Whether any of the datasets has a token.
    pub(super) fn has_tokens(&self) -> bool {
        let mut outputs = self.datasets.iter().flatten();
        outputs.any(|output| output.index.totals().0 > 0)
    }

    /// Writes the descriptions of the datasets, and gives all files their final names.
    pub(super) fn complete(self, tokenizer: &Tokenizer) -> Result<Vec<Built>, DataError> {
        let mut described = Vec::new();
        let folder = self.tokenizer.as_ref().map(|folder| folder.name.clone());
        let name = folder.as_ref().and_then(|folder| folder.file_name());
        let mut outputs: Vec<Output> = self.datasets.into_iter().flatten().collect();
        for output in &mut outputs {
            let sidecar = Sidecar {
                tokenizer: tokenizer.name().to_owned(),
                tokenizer_files: name.map(|name| name.to_string_lossy().into_owned()),
                tokenizer_sha256: tokenizer.sha256().map(str::to_owned),
                vocabulary: tokenizer.vocabulary(),
                end_of_document: tokenizer.end_of_document(),
                tokens: output.index.totals().0,
                documents: output.index.totals().1,
                sha256: hex::encode(output.digest.finalize_reset()),
            };
            output.finish(&sidecar, self.token_type)?;
            described.push(Built {
                path: output.prefix.clone(),
                text_bytes: output.text_bytes,
                skipped: Skipped::default(),
                sidecar,
            });
        }
        if let Some(folder) = &self.tokenizer {
            folder.fill(tokenizer.files())?;
        }
        // The index last: without it there is no dataset. Those of replaced datasets go first, or they would be of other tokens or another
        // tokenizer if this is interrupted. Each part is on disk before the next one, also for a power failure.
        for output in &outputs {
            output.idx.remove_replaced()?;
        }
        if let Some(output) = outputs.first() {
            // All datasets of a build are in one folder.
            sync_folder(folder_of(&output.prefix))?;
        }
        if let Some(folder) = self.tokenizer {
            folder.rename()?;
        }
        for output in outputs {
            let folder = folder_of(&output.prefix);
            output.bin.rename()?;
            output.json.rename()?;
            sync_folder(folder)?;
            output.idx.rename()?;
            sync_folder(folder)?;
        }
        Ok(described)
    }
}

/// `<prefix>-<name>`.
fn with_name(prefix: &Path, name: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push("-");
    path.push(name);
    PathBuf::from(path)
}

/// One dataset that is being written.
struct Output {
    prefix: PathBuf,
    bin: Renamed,
    json: Renamed,
    idx: Renamed,
    out: BufWriter<File>,
    digest: Sha256,
    index: IndexBuilder,
    /// Tokens of the document that has not ended yet.
    open: u64,
    text_bytes: u64,
}

impl Output {
    fn create(prefix: PathBuf) -> Result<Output, DataError> {
        // This comes before anything that is removed on failure: the file may be another build's.
        let out = create_alone(&partial_of(&with_suffix(&prefix, "bin")))?;
        let [bin, json, idx] = ["bin", "json", "idx"].map(|e| Renamed::new(with_suffix(&prefix, e)));
        let out = BufWriter::new(out);
        Ok(Output {
            prefix,
            bin,
            json,
            idx,
            out,
            digest: Sha256::new(),
            index: IndexBuilder::default(),
            open: 0,
            text_bytes: 0,
        })
    }

    fn write(&mut self, bytes: &[u8], part: &EncodedPart) -> Result<(), DataError> {
        self.digest.update(bytes);
        self.out
            .write_all(bytes)
            .map_err(DataError::io("write", &self.bin.partial))?;
        self.open += part.tokens;
        self.text_bytes += part.text_bytes;
        if part.ends {
            self.index.push_document(self.open);
            self.open = 0;
        }
        Ok(())
    }

    fn finish(&mut self, sidecar: &Sidecar, token_type: TokenType) -> Result<(), DataError> {
        let (bin, json, idx) = (&self.bin.partial, &self.json.partial, &self.idx.partial);
        self.out.flush().map_err(DataError::io("write", bin))?;
        sync(self.out.get_ref(), bin)?;
        let index = File::create(idx).map_err(DataError::io("create", idx))?;
        self.index
            .write(&index, token_type)
            .map_err(DataError::io("write", idx))?;
        sync(&index, idx)?;
        let text = serde_json::to_string_pretty(sidecar)
            .map_err(|e| DataError::malformed(json, "description", e, "a description that JSON can hold"))?;
        write_synced(json, (text + "\n").as_bytes())
    }
}

/// Makes a file survive a power failure. Some file systems, such as NFS, say only now that it could not be written.
fn sync(file: &File, path: &Path) -> Result<(), DataError> {
    file.sync_all().map_err(DataError::io("write", path))
}

/// Writes a whole file.
fn write_synced(path: &Path, content: &[u8]) -> Result<(), DataError> {
    let mut file = File::create(path).map_err(DataError::io("create", path))?;
    file.write_all(content).map_err(DataError::io("write", path))?;
    sync(&file, path)
}

/// Makes the names in a folder survive a power failure.
fn sync_folder(folder: &Path) -> Result<(), DataError> {
    use ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // The file system cannot do that with folders, or this one may be written and not read.
        Err(error) if matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported) => Ok(()),
        synced => synced.map_err(DataError::io("write", folder)),
    }
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    // A name alone is in the working directory.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// The temporary name of an incomplete file.
fn partial_of(name: &Path) -> PathBuf {
    with_suffix(name, "partial")
}

/// Creates an empty file that no other build writes until it is closed: two builds that wrote one file would publish a mixture.
fn create_alone(path: &Path) -> Result<File, DataError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.open(path).map_err(DataError::io("create", path))?;
    match file.try_lock() {
        Ok(()) => {}
        // The file system has no locks, so this cannot be checked.
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(DataError::io("lock", path)(error)),
        Err(TryLockError::WouldBlock) => return Err(DataError::Busy(path.to_owned())),
    }
    // Another build may have ended between the two calls, and renamed the file.
    let own = file.metadata().map_err(DataError::io("read", path))?;
    if fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
        file.set_len(0).map_err(DataError::io("write", path))?;
        Ok(file)
    } else {
        Err(DataError::Busy(path.to_owned()))
    }
}

/// A file or folder that gets its final name when it is complete. If it is dropped before, it is removed.
struct Renamed {
    partial: PathBuf,
    name: PathBuf,
}

impl Renamed {
    fn new(name: PathBuf) -> Renamed {
        let partial = partial_of(&name);
        Renamed { partial, name }
    }

    /// Creates it as a folder with these files.
    fn fill(&self, files: &[(String, Vec<u8>)]) -> Result<(), DataError> {
        let partial = &self.partial;
        // Remove what an earlier build has left.
        let _ = fs::remove_dir_all(partial);
        fs::create_dir_all(partial).map_err(DataError::io("create", partial))?;
        for (name, content) in files {
            let path = partial.join(name);
            write_synced(&path, content)?;
        }
        sync_folder(partial)
    }

    /// Removes the file that this one replaces, if there is one.
    fn remove_replaced(&self) -> Result<(), DataError> {
        match fs::remove_file(&self.name) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(DataError::io("replace", &self.name)(error))
            }
            _ => Ok(()),
        }
    }

    fn rename(self) -> Result<(), DataError> {
        if self.partial.is_dir() && self.name.exists() {
            // A folder cannot replace one that is not empty.
            fs::remove_dir_all(&self.name).map_err(DataError::io("replace", &self.name))?;
        }
        fs::rename(&self.partial, &self.name).map_err(DataError::io("rename", &self.partial))
    }
}

impl Drop for Renamed {
    fn drop(&mut self) {
        // There is nothing to remove if it was renamed or not begun.
        if fs::remove_file(&self.partial).is_err() {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_build_writes_is_neither_cut_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        let partial = folder.path().join("corpus.bin.partial");
        // As a killed build leaves it.
        fs::write(&partial, "old").unwrap();
        let mut first = Output::create(prefix.clone()).unwrap();
        first.out.write_all(b"tokens").unwrap();
        first.out.flush().unwrap();
        assert!(matches!(Output::create(prefix.clone()), Err(DataError::Busy(path)) if path == partial));
        assert_eq!(fs::read(&partial).unwrap(), b"tokens");
        drop(first);
        assert!(!partial.exists());
        assert!(Output::create(prefix).is_ok());
    }
}
