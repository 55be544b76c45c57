//! Files on a blob store, read in blocks through a cache of bounded size in memory.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use varuna_blob_store::Place;

/// Size of a block. Samples are spread over the file, so a large block would transfer much that nobody needs, while a small one costs a
/// request all the same.
const BLOCK_BYTES: u64 = 64 << 10;
/// Maximum number of concurrent requests.
const REQUESTS: usize = 64;
/// Maximum number of blocks that are announced and not loaded yet.
const ANNOUNCED: usize = 1024;
/// The share of the cache for blocks that were requested more than once. An announced block is requested once, and must stay in the cache
/// until then.
const HOT_SHARE: f64 = 0.25;
/// Number of parts of the cache, each with a lock: few, since each part evicts by itself.
const SHARDS: usize = 4;

/// Identifies a block: the file's number in this process, and the block's number in the file.
type Key = (u32, u64);

#[derive(Clone)]
struct Size;

impl Weighter<Key, Bytes> for Size {
    fn weight(&self, _: &Key, block: &Bytes) -> u64 {
        block.len() as u64
    }
}

/// What the files of a process share.
pub(super) struct Objects {
    /// The runtime that makes the requests for all callers. None once this is dropped.
    runtime: Option<Runtime>,
    cache: Arc<Cache<Key, Bytes, Size>>,
    /// The stores, by name.
    stores: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>,
    files: AtomicU32,
    requests: Arc<Semaphore>,
    announced: Arc<Semaphore>,
}

/// An object as it existed when it was opened. A later object of the same name is not read.
pub(crate) struct ObjectFile {
    objects: Arc<Objects>,
    object: Arc<Object>,
}

struct Object {
    store: Arc<dyn ObjectStore>,
    path: Path,
    number: u32,
    length: u64,
    /// Version of the object, if the store reports one.
    version: Option<String>,
}

impl Objects {
    /// Starts threads for requests.
    pub(super) fn start(cache_bytes: u64) -> io::Result<Arc<Objects>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("data-store")
            .enable_all()
            .build()?;
        let blocks = usize::try_from(cache_bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(blocks.max(1))
            .weight_capacity(cache_bytes)
            .hot_allocation(HOT_SHARE)
            .shards(SHARDS)
            .build()
            .map_err(io::Error::other)?;
        Ok(Arc::new(Objects {
            runtime: Some(runtime),
            cache: Arc::new(Cache::with_options(
                options,
                Size,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            )),
            stores: Mutex::default(),
            files: AtomicU32::new(0),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            announced: Arc::new(Semaphore::new(ANNOUNCED)),
        }))
    }

    /// Opens an object.
    ///
    /// # Errors
    /// There is none, or the store fails.
    pub(super) fn open(self: &Arc<Self>, place: Place) -> io::Result<ObjectFile> {
        let Place {
            store, path, name, ..
        } = place;
        let store = Arc::clone(self.stores.lock().entry(name).or_insert(store));
        let head = {
            let (store, path) = (Arc::clone(&store), path.clone());
            self.wait_for(async move { store.head(&path).await.map_err(to_io) })?
        };
        Ok(ObjectFile {
            objects: Arc::clone(self),
            object: Arc::new(Object {
                store,
                path,
                number: self.files.fetch_add(1, Ordering::Relaxed),
                length: head.size,
                // A weak tag matches nothing.
                version: head.e_tag.filter(|tag| !tag.starts_with("W/")),
            }),
        })
    }

    /// The result of a request. The caller may be on any thread, including one of another runtime, where nothing may block on a future.
    fn wait_for<T: Send + 'static>(
        &self,
        request: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let gone = || io::Error::other("reading from stores has ended");
        let (done, outcome) = std::sync::mpsc::sync_channel(1);
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        runtime.spawn(async move {
            let _ = done.send(request.await);
        });
        outcome.recv().map_err(|_| gone())?
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // This may be dropped on a thread of another runtime, which must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Object {
    /// A block from the cache or from the store. It is requested once, however many callers ask for it at the same time. With `requests`,
    /// it waits for a permit.
    async fn block(
        &self,
        block: u64,
        cache: &Cache<Key, Bytes, Size>,
        requests: Option<&Semaphore>,
    ) -> io::Result<Bytes> {
        let fetch = async {
            let _permit = match requests {
                Some(requests) => Some(requests.acquire().await.map_err(io::Error::other)?),
                None => None,
            };
            let start = block * BLOCK_BYTES;
            let range = start..self.length.min(start + BLOCK_BYTES);
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                if_match: self.version.clone(),
                ..GetOptions::default()
            };
            let got = self.store.get_opts(&self.path, options).await.map_err(to_io)?;
            let bytes = got.bytes().await.map_err(to_io)?;
            match bytes.len() as u64 == range.end - range.start {
                // The bytes may be a part of a larger buffer, which would stay in memory.
                true => Ok(Bytes::from(bytes.to_vec())),
                false => Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    format!("the store gave {} of the bytes {range:?}", bytes.len()),
                )),
            }
        };
        cache.get_or_insert_async(&(self.number, block), fetch).await
    }
}

impl ObjectFile {
    /// Length of the object, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.object.length
    }

    /// Fills `bytes` with the file's bytes from `offset` on.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.object.length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.prefetch(offset..end);
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            let (block, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let found = self.block(block)?;
            let found = found.get(usize::try_from(within).unwrap_or(usize::MAX)..);
            let found = found.unwrap_or_default();
            let count = found.len().min(rest.len());
            let (part, others) = rest.split_at_mut(count);
            part.copy_from_slice(&found[..count]);
            (rest, at) = (others, at + count as u64);
        }
        Ok(())
    }

    fn block(&self, block: u64) -> io::Result<Bytes> {
        if let Some(found) = self.objects.cache.get(&(self.object.number, block)) {
            return Ok(found);
        }
        // A caller waits for it, so it does not queue behind announced blocks.
        let (object, cache) = (Arc::clone(&self.object), Arc::clone(&self.objects.cache));
        self.objects
            .wait_for(async move { object.block(block, &cache, None).await })
    }

    /// Loads the blocks of these bytes into the cache in the background.
    pub(crate) fn prefetch(&self, range: Range<u64>) {
        let Some(runtime) = &self.objects.runtime else {
            return;
        };
        let end = range.end.min(self.object.length).div_ceil(BLOCK_BYTES);
        for block in range.start / BLOCK_BYTES..end {
            if self.objects.cache.peek(&(self.object.number, block)).is_some() {
                continue;
            }
            let Ok(announced) = Arc::clone(&self.objects.announced).try_acquire_owned() else {
                return;
            };
            let object = Arc::clone(&self.object);
            let (cache, requests) = (
                Arc::clone(&self.objects.cache),
                Arc::clone(&self.objects.requests),
            );
            runtime.spawn(async move {
                // The reader of the block asks again, and gets the error.
                let _ = object.block(block, &cache, Some(&requests)).await;
                drop(announced);
            });
        }
    }
}

fn to_io(error: object_store::Error) -> io::Error {
    let kind = match &error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            ErrorKind::PermissionDenied
        }
        object_store::Error::Precondition { .. } => {
            let why = "it was replaced by another while it was read";
            return io::Error::new(ErrorKind::StaleNetworkFileHandle, why);
        }
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
pub(crate) mod tests;
