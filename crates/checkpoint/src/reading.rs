//! Reads shards: from a bucket by several requests at a time, from this machine's disk through one small buffer. What a processor does with
//! the bytes is done beside the threads that serve the network.

use crate::CheckpointError;
use crate::location::Location;
use crate::manifest::{Manifest, ShardEntry};
use crate::name::{MANIFEST, unit_name};
use crate::shard::{HEADER_GUESS, HEADERS, Keep, Shard, ShardReader, ShardTensor};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetResultPayload, ObjectStore};
use std::fs::File;
use std::io::Read;
use varuna_plan::{Layout, StateId, Unit};

/// A shard is read by several ranged requests at a time: one request has the speed of one connection.
const REQUEST_BYTES: usize = 8 << 20;
const REQUESTS_AT_ONCE: usize = 4;
/// A file is read through a buffer of this size, which is used again and again: it stays in the processor's cache, where digest and copy
/// find it. Fresh memory for all of it costs more than reading does.
const BUFFER_BYTES: usize = 256 << 10;

impl Location {
    /// Reads a unit's shard and checks length and digest. `arrived` is called for each part that arrives.
    ///
    /// # Errors
    /// The store fails, or the shard is missing or damaged.
    pub async fn load(
        &self,
        manifest: &Manifest,
        unit: &str,
        arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        self.read(manifest, unit, Keep::All, arrived).await
    }

    /// Reads a unit of a layout, whichever ranges the checkpoint's units are: those of the layout are read as they are, others are joined and
    /// cut. `arrived` is called for each part that arrives.
    ///
    /// # Errors
    /// The store fails, or a shard is missing or damaged.
    pub async fn load_unit(
        &self,
        manifest: &Manifest,
        unit: (Layout, Unit),
        arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        self.load_unit_in_order(manifest, unit, None, arrived).await
    }

    /// The same where all parameters of the unit's segment are wanted in an order that may not be the checkpoint's, as of a model that was
    /// exported again. What a range has depends on the order: of another one all ranges are joined, and cut when they are in order.
    ///
    /// # Errors
    /// As there, and where the segment has other parameters than these.
    pub async fn load_unit_in_order(
        &self,
        manifest: &Manifest,
        (layout, unit): (Layout, Unit),
        wanted: Option<&[ShardTensor]>,
        mut arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        let own = manifest.layout;
        let (id, whole) = (manifest.state, layout.whole_of(unit));
        if own.ranges > 1 && own.ranges == layout.ranges && self.is_in_order(manifest, whole, wanted).await? {
            return self.load(manifest, &unit_name(layout, unit), arrived).await;
        }
        let name = unit_name(own.undivided(), whole);
        let mut shard = if own.ranges == 1 {
            self.load(manifest, &name, arrived).await?
        } else {
            let mut ranges = Vec::new();
            for range in own.ranges_of(whole) {
                ranges.push(self.load(manifest, &unit_name(own, range), &mut arrived).await?);
            }
            Shard::joined(name.clone(), ranges).map_err(|why| damaged(id, &name, why))?
        };
        if let Some(wanted) = wanted {
            let ordered = shard.in_order(wanted);
            // The checkpoint is sound.
            shard = ordered.map_err(|why| CheckpointError::Unsuitable { id, why })?;
        }
        if layout.ranges > 1 {
            let elements = layout.elements_of(unit, shard.parameters());
            let cut = shard.range(unit_name(layout, unit), elements);
            shard = cut.map_err(|why| damaged(id, &name, why))?;
        }
        Ok(shard)
    }

    /// Whether a checkpoint's ranges of a unit are those of its parameters in this order, if any is wanted. The headers say so together: one alone
    /// does not say which part it has of a parameter that begins before it and ends behind it.
    async fn is_in_order(
        &self,
        manifest: &Manifest,
        whole: Unit,
        wanted: Option<&[ShardTensor]>,
    ) -> Result<bool, CheckpointError> {
        let Some(wanted) = wanted else {
            return Ok(true);
        };
        let own = manifest.layout;
        let names: Vec<String> = own.ranges_of(whole).map(|range| unit_name(own, range)).collect();
        let headers = names.into_iter().map(|name| self.described(manifest, name));
        let headers = futures::stream::iter(headers).buffered(HEADERS);
        let ranges: Vec<Shard> = headers.try_collect().await?;
        let name = unit_name(own.undivided(), whole);
        let joined = Shard::joined(name.clone(), ranges);
        let joined = joined.map_err(|why| damaged(manifest.state, &name, why))?;
        Ok(joined.tensors == wanted)
    }

    /// A unit's shard without its data, as its header describes it.
    async fn described(&self, manifest: &Manifest, unit: String) -> Result<Shard, CheckpointError> {
        let id = manifest.state;
        let entry = entry_of(manifest, &unit)?;
        let path = self.path(id, &entry.file);
        let length = of_length(id, entry, self.inner.head(&path).await, |meta| meta.size)?.size;
        let mut reader = ShardReader::new(id, &unit, length, Keep::Nothing);
        let mut at = 0;
        while at < length {
            let end = length.min(at + HEADER_GUESS);
            reader.push(&self.inner.get_range(&path, at..end).await?)?;
            if let Some(shard) = reader.described() {
                return Ok(shard);
            }
            at = end;
        }
        Err(damaged(id, &entry.file, "it is cut short".into()))
    }

    /// Like [`Location::load`], for somebody who only asks whether the shard is sound: nothing of it is kept.
    ///
    /// # Errors
    /// The store fails, or the shard is missing or damaged.
    pub async fn verify(
        &self,
        manifest: &Manifest,
        unit: &str,
        arrived: impl FnMut(),
    ) -> Result<(), CheckpointError> {
        self.read(manifest, unit, Keep::Nothing, arrived)
            .await
            .map(|_| ())
    }

    async fn read(
        &self,
        manifest: &Manifest,
        unit: &str,
        keep: Keep,
        mut arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        let id = manifest.state;
        let entry = entry_of(manifest, unit)?;
        let path = self.path(id, &entry.file);
        let reader = ShardReader::new(id, unit, entry.bytes, keep);
        let reader = match &self.disk {
            Some(disk) => read_file(id, disk.get(&path).await, entry, reader, &mut arrived).await?,
            None => read_object(id, &*self.inner, &path, entry, reader, &mut arrived).await?,
        };
        let (digest, shard) = reader.finish()?;
        if digest != entry.digest {
            let why = "its digest differs from the one in the manifest".to_owned();
            return Err(damaged(id, &entry.file, why));
        }
        Ok(shard)
    }
}

/// What the manifest says of a unit's shard.
fn entry_of<'a>(manifest: &'a Manifest, unit: &str) -> Result<&'a ShardEntry, CheckpointError> {
    let entry = manifest.shards.iter().find(|s| s.unit == unit);
    entry.ok_or_else(|| damaged(manifest.state, MANIFEST, format!("it names no shard of {unit}")))
}

fn damaged(id: StateId, file: &str, why: String) -> CheckpointError {
    CheckpointError::Damaged {
        id,
        file: file.to_owned(),
        why,
    }
}

/// What was found where a shard should be, if it has the length that the manifest says.
fn of_length<T>(
    id: StateId,
    entry: &ShardEntry,
    found: object_store::Result<T>,
    length: impl Fn(&T) -> u64,
) -> Result<T, CheckpointError> {
    let found = match found {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => {
            return Err(damaged(id, &entry.file, "it is missing".into()));
        }
        Err(error) => return Err(error.into()),
    };
    let length = length(&found);
    if length != entry.bytes {
        let why = format!("it has {length} bytes, the manifest says {}", entry.bytes);
        return Err(damaged(id, &entry.file, why));
    }
    Ok(found)
}

async fn read_object(
    id: StateId,
    store: &dyn ObjectStore,
    path: &Path,
    entry: &ShardEntry,
    mut reader: ShardReader,
    arrived: &mut impl FnMut(),
) -> Result<ShardReader, CheckpointError> {
    let length = of_length(id, entry, store.head(path).await, |meta| meta.size)?.size;
    let starts = (0..length).step_by(REQUEST_BYTES);
    let requests = starts.map(|at| store.get_range(path, at..length.min(at + REQUEST_BYTES as u64)));
    let mut parts = futures::stream::iter(requests).buffered(REQUESTS_AT_ONCE);
    while let Some(part) = parts.try_next().await? {
        reader = beside(move || reader.push(&part).map(|()| reader)).await?;
        arrived();
    }
    Ok(reader)
}

async fn read_file(
    id: StateId,
    found: object_store::Result<object_store::GetResult>,
    entry: &ShardEntry,
    mut reader: ShardReader,
    arrived: &mut impl FnMut(),
) -> Result<ShardReader, CheckpointError> {
    let found = of_length(id, entry, found, |found| found.meta.size)?;
    let GetResultPayload::File(mut file, _) = found.payload else {
        return Err(disk("the store gives no file of its own folder".into()));
    };
    let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(entry.bytes).unwrap_or(usize::MAX))];
    let mut left = entry.bytes;
    while left > 0 {
        let part = left.min(REQUEST_BYTES as u64);
        let read = beside(move || {
            read_part(&mut file, part, &mut buffer, &mut reader).map(|n| (n, file, buffer, reader))
        });
        let n;
        (n, file, buffer, reader) = read.await?;
        // A file that is shorter than it was: the reader says so.
        left = if n == 0 { 0 } else { left - n };
        arrived();
    }
    Ok(reader)
}

/// Reads so many bytes, or up to the end of the file; how many there were.
fn read_part(
    file: &mut File,
    bytes: u64,
    buffer: &mut [u8],
    reader: &mut ShardReader,
) -> Result<u64, CheckpointError> {
    let mut source = file.take(bytes);
    let mut all = 0;
    loop {
        match source.read(buffer) {
            Ok(0) => return Ok(all),
            Ok(n) => {
                reader.push(&buffer[..n])?;
                all += n as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(disk(error.into())),
        }
    }
}

fn disk(source: Box<dyn std::error::Error + Send + Sync>) -> CheckpointError {
    let store = "local folder";
    CheckpointError::Store(object_store::Error::Generic { store, source })
}

/// Runs what keeps a processor busy on a thread for that, where there is a runtime.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            let done = runtime.spawn_blocking(work).await;
            done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
        }
        Err(_) => work(),
    }
}
