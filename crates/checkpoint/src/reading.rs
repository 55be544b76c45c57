//! Reads shards: from a bucket with several concurrent requests, from a local disk through one small buffer. Processor-intensive work does
//! not run on the threads that serve the network.

mod units;

use crate::CheckpointError;
use crate::location::Location;
use crate::manifest::{Manifest, ShardEntry};
use crate::name::MANIFEST;
use crate::shard::{Keep, Shard, ShardReader};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use varuna_plan::StateId;

/// Size of a ranged request. A shard is read by several requests at a time, since a single request has only the speed of one connection.
const REQUEST_BYTES: usize = 8 << 20;
const REQUESTS_AT_ONCE: usize = 4;
/// Size of the buffer through which a file is read. It is reused, so it stays in the processor's cache, where digest and copy find it.
/// Fresh memory for the whole file costs more than reading does.
const BUFFER_BYTES: usize = 256 << 10;
/// Interval at which slowly arriving bytes are reported. The receiver is patient for seconds, so it need not hear of each piece.
const CALL_INTERVAL: Duration = Duration::from_millis(250);

impl Location {
    /// Reads a unit's shard and checks length and digest. `arrived` is called for each part that arrives, and regularly during a slow one.
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

    /// Like [`Location::load`], but only checks that the shard is valid and keeps nothing of it.
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

    /// Requests a shard by its name, and checks that it exists with the length in the manifest.
    ///
    /// # Errors
    /// The store fails, or the shard is missing or of another length.
    pub(crate) async fn check_length(&self, id: StateId, entry: &ShardEntry) -> Result<(), CheckpointError> {
        let found = self.inner.head(&self.path(id, &entry.file)).await;
        of_length(id, entry, found, |meta| meta.size).map(drop)
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

/// The manifest's entry for a unit's shard.
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

/// The result of a request for a shard, if it has the length in the manifest.
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
    let arrivals = Arrivals::new(arrived);
    let request = move |range: Range<u64>| async move {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        let got = store.get_opts(path, options).await;
        got.map(GetResult::into_stream)
    };
    let starts = (0..length).step_by(REQUEST_BYTES);
    let parts = starts.map(|at| at..length.min(at + REQUEST_BYTES as u64));
    let requests = parts.map(|part| read_range(part, &arrivals, request));
    let mut parts = futures::stream::iter(requests).buffered(REQUESTS_AT_ONCE);
    while let Some(part) = parts.try_next().await? {
        reader = beside(move || reader.push(&part).map(|()| reader)).await?;
        arrivals.call();
    }
    Ok(reader)
}

/// The response of a request, piece by piece.
type Pieces = BoxStream<'static, object_store::Result<Bytes>>;

/// Reads some bytes of an object with as many requests as it takes. A client limits the total time of a request, and a slow store may need
/// more: the next request continues where one has ended, and only a request that returns nothing is an error.
async fn read_range<F, R>(
    range: Range<u64>,
    arrivals: &Arrivals<'_, F>,
    request: impl Fn(Range<u64>) -> R,
) -> object_store::Result<Vec<u8>>
where
    F: FnMut(),
    R: Future<Output = object_store::Result<Pieces>>,
{
    let mut bytes = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
    let mut at = range.start;
    while at < range.end {
        let began = at;
        let mut pieces = request(at..range.end).await?;
        let ended = loop {
            match pieces.try_next().await {
                Ok(Some(piece)) => {
                    at += piece.len() as u64;
                    bytes.extend_from_slice(&piece);
                    arrivals.note();
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if at == began {
            return Err(ended.unwrap_or_else(|| store_error("the store gave none of the bytes of a shard")));
        }
    }
    Ok(bytes)
}

/// The callback for arriving bytes, shared by concurrent requests.
struct Arrivals<'a, F>(Mutex<Callback<'a, F>>);

struct Callback<'a, F> {
    arrived: &'a mut F,
    /// When it was last called.
    at: Instant,
}

impl<'a, F: FnMut()> Arrivals<'a, F> {
    fn new(arrived: &'a mut F) -> Arrivals<'a, F> {
        let at = Instant::now();
        Arrivals(Mutex::new(Callback { arrived, at }))
    }

    /// Some bytes have arrived.
    fn note(&self) {
        self.call_after(CALL_INTERVAL);
    }

    /// A part has arrived.
    fn call(&self) {
        self.call_after(Duration::ZERO);
    }

    fn call_after(&self, pause: Duration) {
        // An error means that the callback has panicked, which ends the read.
        let Ok(mut callback) = self.0.lock() else { return };
        let Callback { arrived, at } = &mut *callback;
        if at.elapsed() >= pause {
            *at = Instant::now();
            (*arrived)();
        }
    }
}

async fn read_file(
    id: StateId,
    found: object_store::Result<GetResult>,
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
        // If the file is shorter than it was, the reader reports it.
        left = if n == 0 { 0 } else { left - n };
        arrived();
    }
    Ok(reader)
}

/// Reads up to `bytes` bytes, or up to the end of the file, into the reader. Returns how many there were.
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

fn store_error(why: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "store of checkpoints",
        source: why.into(),
    }
}

fn disk(source: Box<dyn std::error::Error + Send + Sync>) -> CheckpointError {
    let store = "local folder";
    CheckpointError::Store(object_store::Error::Generic { store, source })
}

/// Runs processor-intensive work on a thread for blocking work, if there is a runtime.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            let done = runtime.spawn_blocking(work).await;
            done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
        }
        Err(_) => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a response to a request for these bytes, two bytes at a time, which ends after `most` bytes. Each byte's value is its
    /// position.
    fn cut_after(most: u64, range: &Range<u64>) -> Pieces {
        let end = range.end.min(range.start + most);
        let all: Vec<u8> = (range.start..end).map(|at| u8::try_from(at).unwrap()).collect();
        let pieces: Vec<object_store::Result<Bytes>> = all
            .chunks(2)
            .map(|two| Ok(Bytes::copy_from_slice(two)))
            .chain([Err(store_error("operation timed out"))])
            .collect();
        futures::stream::iter(pieces).boxed()
    }

    #[tokio::test]
    async fn slow_request_is_continued_by_another() {
        let asked = Mutex::new(Vec::new());
        let request = |range: Range<u64>| {
            asked.lock().unwrap().push(range.start);
            std::future::ready(Ok(cut_after(10, &range)))
        };
        let mut arrived = || {};
        let arrivals = Arrivals::new(&mut arrived);
        let read = read_range(5..40, &arrivals, request).await.unwrap();
        assert_eq!(read, (5..40).collect::<Vec<u8>>());
        assert_eq!(*asked.lock().unwrap(), [5, 15, 25, 35]);
        let nothing = |range: Range<u64>| std::future::ready(Ok(cut_after(0, &range)));
        let error = read_range(5..40, &arrivals, nothing).await.unwrap_err();
        assert!(error.to_string().contains("timed out"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn trickling_bytes_are_reported_as_they_arrive() {
        let request = |range: Range<u64>| {
            let pieces = futures::stream::iter(range).then(|_| async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok::<_, object_store::Error>(Bytes::from_static(&[7]))
            });
            std::future::ready(Ok(pieces.boxed()))
        };
        let mut told = Vec::new();
        {
            let mut arrived = || told.push(Instant::now());
            let arrivals = Arrivals::new(&mut arrived);
            read_range(0..100, &arrivals, request).await.unwrap();
        }
        assert!((25..=40).contains(&told.len()), "{}", told.len());
        let longest = told.windows(2).map(|two| two[1] - two[0]).max();
        assert!(longest < Some(Duration::from_secs(1)), "{longest:?}");
    }
}
