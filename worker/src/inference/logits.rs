//! `varuna-worker logits`: the logits of given tokens, to be compared with another program's.

use super::load::ModelArguments;
use crate::backend::Platform;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use tch::Tensor;
use varuna_api::Packing;
use varuna_torch::vec_from_tensor;

/// Write the logits of sequences of tokens. The sequences are read from standard input, as a JSON list of lists of equal length.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// File to write, in NumPy's format (.npy): float32, sequences x tokens x vocabulary.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

/// Computes and writes.
pub(crate) fn run(arguments: &Arguments, platform: Platform) -> Result<()> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("cannot read tokens from standard input")?;
    let tokens = rows(&text)?;
    let chosen = arguments.model.choose()?;
    let trained = arguments.model.load(&chosen, platform, Packing::default())?;
    let logits = trained.logits(&tokens)?;
    let values = vec_from_tensor::<f32>(&logits)?;
    let written = write_npy(&arguments.output, &logits.size(), &values);
    written.with_context(|| format!("cannot write {} (--output)", arguments.output.display()))
}

/// Tokens (b, t) of a JSON list of lists.
fn rows(text: &str) -> Result<Tensor> {
    let rows: Vec<Vec<i64>> =
        serde_json::from_str(text).context("standard input is no list of lists of tokens")?;
    let length = rows.first().map_or(0, Vec::len);
    if length == 0 || rows.iter().any(|row| row.len() != length) {
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        bail!("the sequences have {lengths:?} tokens, allowed is one length for all, at least 1");
    }
    Ok(Tensor::from_slice(&rows.concat()).view([-1, i64::try_from(length)?]))
}

/// Version 1.0 of NumPy's format: a header in text, filled up so that the elements begin at a multiple of 64 bytes.
fn write_npy(path: &Path, shape: &[i64], values: &[f32]) -> std::io::Result<()> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let bytes = u16::try_from(length).map_err(std::io::Error::other)?;
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&bytes.to_le_bytes())?;
    writeln!(out, "{header:<width$}", width = length - 1)?;
    for value in values {
        out.write_all(&value.to_le_bytes())?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_begins_at_a_multiple_of_64_bytes_behind_its_shape() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        write_npy(&path, &[1, 2, 2], &[1.0, -2.0, 0.5, 3.0]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let start = bytes.len() - 16;
        assert_eq!(start % 64, 0);
        assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), start - 10);
        let header = String::from_utf8_lossy(&bytes[10..start]);
        assert!(
            header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 2, ), }"),
            "{header}"
        );
        assert!(header.ends_with('\n'));
        assert_eq!(bytes[start..start + 4], 1.0f32.to_le_bytes());
    }

    #[test]
    fn sequences_of_different_lengths_are_refused() {
        assert_eq!(rows("[[1, 2], [3, 4], [5, 6]]").unwrap().size(), [3, 2]);
        for text in ["[[1, 2], [3]]", "[]", "[[]]"] {
            let why = rows(text).unwrap_err().to_string();
            assert!(why.contains("allowed is one length for all"), "{why}");
        }
        assert!(rows("7").is_err());
    }
}
