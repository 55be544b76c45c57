//! A shard's file, as a sequence of pieces to be written.

use super::Shard;
use crate::{CheckpointError, DataDigest};
use bytes::Bytes;

/// A shard's file: pieces that are written one after the other.
#[derive(Clone, Debug)]
pub struct ShardFile {
    pieces: Vec<Bytes>,
}

impl ShardFile {
    /// Bytes of all pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|p| p.len() as u64).sum()
    }

    /// The pieces, with the longer ones cut so that none has more than `most` bytes.
    pub(crate) fn pieces(&self, most: usize) -> impl Iterator<Item = Bytes> {
        let cut = move |piece: &Bytes| {
            let piece = piece.clone();
            let starts = (0..piece.len()).step_by(most);
            starts.map(move |start| piece.slice(start..piece.len().min(start + most)))
        };
        self.pieces.iter().flat_map(cut)
    }
}

impl From<Bytes> for ShardFile {
    fn from(whole: Bytes) -> ShardFile {
        ShardFile { pieces: vec![whole] }
    }
}

impl From<Vec<u8>> for ShardFile {
    fn from(whole: Vec<u8>) -> ShardFile {
        Bytes::from(whole).into()
    }
}

/// The data of a shard as bytes. On every machine that a worker runs on, elements have the same form in memory as in the file: the least
/// significant byte first.
struct AsBytes<D>(D);

impl<D: AsRef<[f32]>> AsRef<[u8]> for AsBytes<D> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.as_ref())
    }
}

impl<D: AsRef<[f32]> + Send + 'static> Shard<D> {
    /// The file, with the bytes that [`Shard::encode`] gives. The data are not copied: they are kept until the file is dropped.
    ///
    /// # Errors
    /// The amount of data does not match the shapes.
    pub fn into_file(self) -> Result<ShardFile, CheckpointError> {
        let placed = self.placed()?;
        let data: &[u8] = bytemuck::cast_slice(self.data.as_ref());
        let in_bytes = |at: &std::ops::Range<usize>| at.start * size_of::<f32>()..at.end * size_of::<f32>();
        let ranges: Vec<_> = placed.iter().map(|t| in_bytes(&t.at)).collect();
        let digest = DataDigest::of(ranges.iter().map(|range| &data[range.clone()]));
        let header = self.header(&placed, digest)?;
        drop(placed);
        let data = Bytes::from_owner(AsBytes(self.data));
        let mut pieces = vec![Bytes::from(header)];
        pieces.extend(ranges.into_iter().map(|range| data.slice(range)));
        Ok(ShardFile { pieces })
    }
}
