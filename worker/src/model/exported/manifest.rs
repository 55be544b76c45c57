//! The manifest of a folder that `varuna_export` has written (ADR 38): what each file contains.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::sha256;
use varuna_model::{Exported, ExportedSample, ExportedSegment, Parameter, ParameterKind};

/// The version that this build reads.
const VERSION: u32 = 1;

/// A folder's manifest does not describe a model that can be trained: what is wrong, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(String);

/// A manifest.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    format_version: u32,
    plan_dependent: bool,
    sample: ExportedSample,
    pub(super) segments: Vec<Segment>,
    #[serde(default)]
    pub(super) shared: Shared,
    pub(super) loss: Loss,
    /// SHA-256 in hex by the name of a file.
    files: BTreeMap<String, String>,
}

/// One segment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Segment {
    /// File of its code.
    pub(super) code: String,
    /// File of its parameters' initial values; none where it has no parameters of its own.
    #[serde(default)]
    pub(super) values: Option<String>,
    /// Its own, in the order of flat buffers.
    parameters: Vec<Held>,
    /// Where parameters of both ends go.
    #[serde(default)]
    shared: Vec<SharedUse>,
    #[serde(flatten)]
    amounts: Amounts,
}

/// What the job file has of a segment, too.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Amounts {
    name: String,
    output: Vec<u32>,
    forward_flops: u64,
    backward_flops: u64,
    saved_elements: u64,
    working_elements: u64,
}

/// A parameter.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Held {
    name: String,
    /// Where it goes in the segment's module; empty for a shared one, whose segments say that.
    #[serde(default)]
    slots: Vec<String>,
    shape: Vec<usize>,
    kind: ParameterKind,
}

/// Where a shared parameter goes in a segment's module.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct SharedUse {
    name: String,
    slots: Vec<String>,
}

/// What the first and the last segment share.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub(super) struct Shared {
    /// File of the initial values; none where nothing is shared.
    #[serde(default)]
    pub(super) values: Option<String>,
    #[serde(default)]
    parameters: Vec<Held>,
}

/// The loss.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Loss {
    /// File of its code.
    pub(super) code: String,
}

impl Held {
    fn elements(&self) -> Option<u64> {
        let sizes = self.shape.iter().map(|size| u64::try_from(*size).ok());
        sizes
            .into_iter()
            .try_fold(1u64, |all, size| all.checked_mul(size?))
    }

    fn parameter(&self) -> Parameter {
        Parameter::stored(self.name.clone(), self.shape.clone(), self.kind)
    }

    /// Its line in what a digest of parameters is taken of: `blocks.0.qkv.weight 48x16`.
    fn line(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        format!("{} {}\n", self.name, sizes.join("x"))
    }
}

impl Manifest {
    /// Reads a manifest and checks what it says against the job's description.
    pub(super) fn read(bytes: &[u8], job: &Exported) -> Result<Manifest, ManifestError> {
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|e| ManifestError(format!("it cannot be read: {e}")))?;
        if manifest.format_version != VERSION {
            let found = manifest.format_version;
            let wrong =
                format!("formatVersion is {found}, this build reads {VERSION}: export the model again");
            return Err(ManifestError(wrong));
        }
        manifest.check_parameters()?;
        manifest.check_files()?;
        manifest.check_job(job)?;
        Ok(manifest)
    }

    /// The parameters of a segment, or of what both ends share.
    pub(super) fn parameters(&self, segment: Option<usize>) -> Vec<Parameter> {
        let held = match segment {
            Some(segment) => self.segments.get(segment).map_or(&[][..], |s| &s.parameters),
            None => &self.shared.parameters,
        };
        held.iter().map(Held::parameter).collect()
    }

    /// Where a segment's parameters go in its module: its own in their order, then those of what both ends share, all of them in their order.
    pub(super) fn slots(&self, segment: usize) -> Vec<Vec<String>> {
        let Some(of) = self.segments.get(segment) else {
            return Vec::new();
        };
        let own = of.parameters.iter().map(|p| p.slots.clone());
        let used = |held: &Held| {
            let uses = of.shared.iter().filter(|u| u.name == held.name);
            uses.flat_map(|u| u.slots.iter().cloned()).collect()
        };
        let shared = self.shared.parameters.iter().map(used);
        // In the middle there is no unit of shared parameters.
        let is_end = segment == 0 || segment + 1 == self.segments.len();
        own.chain(shared.filter(|_| is_end)).collect()
    }

    /// The digest of a file.
    pub(super) fn digest(&self, file: &str) -> Option<&str> {
        self.files.get(file).map(String::as_str)
    }

    /// SHA-256 of the names and shapes of what a segment computes with, in the order of names, as `varuna_export` puts it into `model.yaml`.
    fn parameters_digest(&self, segment: usize) -> String {
        let own = self.segments.get(segment).map_or(&[][..], |s| &s.parameters);
        let is_end = segment == 0 || segment + 1 == self.segments.len();
        let shared = self.shared.parameters.iter().filter(|_| is_end);
        let mut held: Vec<&Held> = own.iter().chain(shared).collect();
        held.sort_by(|a, b| a.name.cmp(&b.name));
        let lines: Vec<String> = held.into_iter().map(Held::line).collect();
        sha256(lines.concat().as_bytes())
    }

    fn held(&self) -> impl Iterator<Item = &Held> {
        let own = self.segments.iter().flat_map(|s| &s.parameters);
        own.chain(&self.shared.parameters)
    }

    fn check_parameters(&self) -> Result<(), ManifestError> {
        let mut names = BTreeSet::new();
        for held in self.held() {
            let name = &held.name;
            if !names.insert(name.as_str()) {
                return Err(ManifestError(format!("it has two parameters of the name {name}")));
            }
            if held.elements().is_none_or(|elements| elements == 0) {
                let shape = &held.shape;
                return Err(ManifestError(format!(
                    "the parameter {name} has the shape {shape:?}"
                )));
            }
            if held.kind == ParameterKind::Matrix && held.shape.len() < 2 {
                let wrong = format!(
                    "the parameter {name} of {} dimensions is called a matrix",
                    held.shape.len()
                );
                return Err(ManifestError(wrong));
            }
        }
        // Muon takes the first elements of a unit for its matrices.
        let is_matrix = |p: &Held| p.kind == ParameterKind::Matrix;
        let begin_with_matrices = |all: &[Held]| all.is_sorted_by(|a, b| is_matrix(a) >= is_matrix(b));
        if !begin_with_matrices(&self.shared.parameters) {
            let wrong = "the matrices of what both ends share do not come first";
            return Err(ManifestError(wrong.to_owned()));
        }
        for (i, segment) in self.segments.iter().enumerate() {
            if !begin_with_matrices(&segment.parameters) {
                return Err(ManifestError(format!(
                    "the matrices of segment {i} do not come first"
                )));
            }
            let known = |u: &SharedUse| self.shared.parameters.iter().any(|p| p.name == u.name);
            let is_end = i == 0 || i + 1 == self.segments.len();
            if let Some(unknown) = segment.shared.iter().find(|u| !known(u) || !is_end) {
                let name = &unknown.name;
                let wrong =
                    format!("segment {i} uses the shared parameter {name}, which there is not for it");
                return Err(ManifestError(wrong));
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), ManifestError> {
        let codes = self.segments.iter().map(|s| &s.code);
        let values = self.segments.iter().filter_map(|s| s.values.as_ref());
        let named = codes
            .chain(values)
            .chain([&self.loss.code])
            .chain(&self.shared.values);
        for file in named {
            let is_plain = !file.is_empty() && !file.starts_with('.') && !file.contains(['/', '\\', '\0']);
            if !is_plain {
                return Err(ManifestError(format!(
                    "{file:?} is no name of a file in the folder"
                )));
            }
            if self.digest(file).is_none() {
                return Err(ManifestError(format!("the file {file} has no digest")));
            }
        }
        Ok(())
    }

    fn check_job(&self, job: &Exported) -> Result<(), ManifestError> {
        let elements = |all: &[Held]| -> u64 { all.iter().filter_map(Held::elements).sum() };
        // Job files of older exports do not have it.
        let has_digest = |i: usize| job.segments.get(i).is_some_and(|s| s.parameters_digest.is_some());
        let segment = |(i, of): (usize, &Segment)| ExportedSegment {
            name: of.amounts.name.clone(),
            parameters: elements(&of.parameters),
            output: of.amounts.output.clone(),
            forward_flops: of.amounts.forward_flops,
            backward_flops: of.amounts.backward_flops,
            saved_elements: of.amounts.saved_elements,
            working_elements: of.amounts.working_elements,
            parameters_digest: has_digest(i).then(|| self.parameters_digest(i)),
        };
        let own = Exported {
            path: job.path.clone(),
            digest: job.digest.clone(),
            sample: self.sample,
            plan_dependent: self.plan_dependent,
            shared_parameters: elements(&self.shared.parameters),
            segments: self.segments.iter().enumerate().map(segment).collect(),
        };
        if own == *job {
            return Ok(());
        }
        let differing = own.segments.iter().zip(&job.segments).position(|(a, b)| a != b);
        let place = match differing {
            Some(i) => format!("segment {i}"),
            None if own.segments.len() != job.segments.len() => "the number of segments".to_owned(),
            None => "sample, planDependent or sharedParameters".to_owned(),
        };
        Err(ManifestError(format!(
            "the job file's spec.model.exported says something else of {place}: copy the folder's model.yaml into it"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn manifest() -> Value {
        let segment = |name: &str, slot: &str, shared: Value| {
            json!({
                "name": name, "code": format!("{name}.pt"), "values": format!("{name}.safetensors"), "output": [4, 8],
                "parameters": [
                    { "name": format!("{name}.w"), "slots": [slot], "shape": [8, 8], "kind": "matrix" },
                    { "name": format!("{name}.b"), "slots": ["b"], "shape": [8], "kind": "bias" },
                ],
                "shared": shared, "forwardFlops": 1, "backwardFlops": 2, "savedElements": 3, "workingElements": 4,
            })
        };
        json!({
            "formatVersion": 1, "producer": "a test", "planDependent": false,
            "sample": { "length": 4, "values": 9, "records": false },
            "segments": [
                segment("a", "x.w", json!([{ "name": "table", "slots": ["table"] }])),
                segment("m", "w", json!([])),
                segment("z", "w", json!([{ "name": "table", "slots": ["head.weight", "again"] }])),
            ],
            "shared": {
                "values": "shared.safetensors",
                "parameters": [{ "name": "table", "shape": [9, 8], "kind": "embedding" }],
            },
            "loss": { "code": "loss.pt" },
            "files": {
                "a.pt": "0", "m.pt": "0", "z.pt": "0", "a.safetensors": "0", "m.safetensors": "0", "z.safetensors": "0",
                "shared.safetensors": "0", "loss.pt": "0",
            },
        })
    }

    fn job() -> Exported {
        let segment = |name: &str| ExportedSegment {
            name: name.into(),
            parameters: 72,
            output: vec![4, 8],
            forward_flops: 1,
            backward_flops: 2,
            saved_elements: 3,
            working_elements: 4,
            parameters_digest: None,
        };
        Exported {
            path: "p".into(),
            digest: "d".into(),
            sample: ExportedSample {
                length: 4,
                values: 9,
                records: false,
            },
            plan_dependent: false,
            shared_parameters: 72,
            segments: ["a", "m", "z"].map(segment).to_vec(),
        }
    }

    fn read(manifest: &Value) -> Result<Manifest, ManifestError> {
        Manifest::read(manifest.to_string().as_bytes(), &job())
    }

    #[test]
    fn parameters_follow_the_manifest_and_shared_ones_both_ends() {
        let manifest = read(&manifest()).unwrap();
        let names = |segment| {
            let all = manifest.parameters(segment).into_iter();
            all.map(|p| p.name.into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(Some(1)), ["m.w", "m.b"]);
        assert_eq!(names(None), ["table"]);
        assert_eq!(manifest.slots(0), [vec!["x.w"], vec!["b"], vec!["table"]]);
        assert_eq!(manifest.slots(1), [vec!["w"], vec!["b"]]);
        assert_eq!(manifest.slots(2)[2], ["head.weight", "again"]);
    }

    #[test]
    fn parameter_names_and_shapes_must_match_the_job() {
        let read = |segment: usize, text: &str| {
            let mut job = job();
            job.segments[segment].parameters_digest = Some(sha256(text.as_bytes()));
            Manifest::read(manifest().to_string().as_bytes(), &job).map(drop)
        };
        assert_eq!(read(1, "m.b 8\nm.w 8x8\n"), Ok(()));
        assert_eq!(
            read(2, "table 9x8\nz.b 8\nz.w 8x8\n"),
            Ok(()),
            "what both ends share, too"
        );
        for other in ["m.b 8\nm.v 8x8\n", "m.b 8\nm.w 4x16\n", ""] {
            let error = read(1, other).unwrap_err().to_string();
            assert!(error.contains("something else of segment 1"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_trained_is_refused_with_the_place() {
        let with = |pointer: &str, value: Value| {
            let mut manifest = manifest();
            *manifest.pointer_mut(pointer).unwrap() = value;
            read(&manifest).unwrap_err().to_string()
        };
        for (pointer, value, expected) in [
            (
                "/formatVersion",
                json!(2),
                "formatVersion is 2, this build reads 1",
            ),
            (
                "/segments/1/parameters/1/name",
                json!("m.w"),
                "two parameters of the name m.w",
            ),
            (
                "/segments/1/parameters/1/shape",
                json!([0]),
                "m.b has the shape [0]",
            ),
            (
                "/segments/1/parameters/0/shape",
                json!([64]),
                "m.w of 1 dimensions is called a matrix",
            ),
            ("/segments/1/parameters/0/kind", json!("norm"), "segment 1"),
            (
                "/segments/1/shared",
                json!([{"name": "table", "slots": ["t"]}]),
                "segment 1 uses the shared parameter table",
            ),
            (
                "/segments/0/code",
                json!("../a.pt"),
                "\"../a.pt\" is no name of a file",
            ),
            ("/segments/0/code", json!("other.pt"), "other.pt has no digest"),
            (
                "/segments/2/savedElements",
                json!(5),
                "something else of segment 2",
            ),
            ("/sample/values", json!(10), "something else of sample"),
            (
                "/shared/parameters",
                json!([
                    { "name": "table", "shape": [9, 8], "kind": "embedding" },
                    { "name": "square", "shape": [8, 8], "kind": "matrix" },
                ]),
                "the matrices of what both ends share do not come first",
            ),
            ("/segments/0/parameters", json!("x"), "it cannot be read"),
        ] {
            let mut manifest = manifest();
            *manifest.pointer_mut(pointer).unwrap() = value.clone();
            if expected == "segment 1" {
                // The norm now comes before a matrix.
                manifest["segments"][1]["parameters"][1]["kind"] = json!("matrix");
                manifest["segments"][1]["parameters"][1]["shape"] = json!([2, 4]);
            }
            let error = read(&manifest).unwrap_err().to_string();
            assert!(error.contains(expected), "{pointer}: {error}");
        }
        assert!(with("/loss/code", json!("")).contains("is no name of a file"));
    }
}
