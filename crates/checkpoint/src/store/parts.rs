//! Uploads large shards in parts.

use crate::rate_limit::RateLimit;
use crate::shard::ShardFile;
use bytes::Bytes;
use object_store::{MultipartUpload, PutPayload};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Shards above this size are uploaded in parts of it.
pub(super) const PART_BYTES: usize = 8 << 20;
/// Maximum number of parts that a store accepts: the parts of the largest shards are larger.
const PARTS_MAX: usize = 10_000;
/// Number of parts of a shard that are uploaded at a time at first, and at most.
const PARTS_AT_ONCE: usize = 2;
const PARTS_AT_ONCE_MAX: usize = 8;
/// If a part takes less than this, one more is uploaded at a time.
const QUICK: Duration = Duration::from_secs(2);
/// If a part takes more than this, half as many. A request has 30 s, and all of a worker's requests share its link: with too many none
/// would finish.
const SLOW: Duration = Duration::from_secs(8);

/// The number of parts that are uploaded at a time.
struct Window(usize);

impl Window {
    /// A part took so long.
    fn note(&mut self, took: Duration) {
        self.0 = match took {
            took if took < QUICK => (self.0 + 1).min(PARTS_AT_ONCE_MAX),
            took if took > SLOW => (self.0 / 2).max(1),
            _ => self.0,
        };
    }
}

/// Uploads a file in parts. If that fails, the parts that were uploaded are deleted: they cost money, and no listing shows them.
pub(super) async fn put_parts(
    upload: &mut dyn MultipartUpload,
    file: &ShardFile,
    limit: &RateLimit,
) -> object_store::Result<()> {
    let put = try_to_put_parts(upload, file, limit).await;
    if put.is_err() {
        // If that fails too, the first error is reported.
        let _ = upload.abort().await;
    }
    put
}

async fn try_to_put_parts(
    upload: &mut dyn MultipartUpload,
    file: &ShardFile,
    limit: &RateLimit,
) -> object_store::Result<()> {
    let bytes = usize::try_from(file.bytes()).unwrap_or(usize::MAX);
    // They are tasks, so that they continue while the rate limit delays the next one.
    let (mut under_way, mut window) = (JoinSet::new(), Window(PARTS_AT_ONCE));
    for part in in_parts(file.pieces(PART_BYTES), PART_BYTES.max(bytes.div_ceil(PARTS_MAX))) {
        limit.wait(part.content_length()).await;
        while under_way.len() >= window.0 {
            window.note(end_of_one(&mut under_way).await?);
        }
        let put = upload.put_part(part);
        under_way.spawn(async move {
            let began = Instant::now();
            put.await.map(|()| began.elapsed())
        });
    }
    while !under_way.is_empty() {
        end_of_one(&mut under_way).await?;
    }
    upload.complete().await.map(drop)
}

/// The time of the part that ends next.
async fn end_of_one(
    under_way: &mut JoinSet<object_store::Result<Duration>>,
) -> object_store::Result<Duration> {
    match under_way.join_next().await {
        Some(Ok(put)) => put,
        Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
        None => Ok(Duration::ZERO),
    }
}

/// The pieces as payloads of `size` bytes, the last one shorter. Nothing is copied.
fn in_parts(mut pieces: impl Iterator<Item = Bytes>, size: usize) -> impl Iterator<Item = PutPayload> {
    let mut rest = Bytes::new();
    std::iter::from_fn(move || {
        let (mut part, mut missing) = (Vec::new(), size);
        while missing > 0 {
            if rest.is_empty() {
                match pieces.next() {
                    Some(piece) => rest = piece,
                    None => break,
                }
            }
            let piece = rest.split_to(missing.min(rest.len()));
            missing -= piece.len();
            part.push(piece);
        }
        (missing < size).then(|| part.into_iter().collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use object_store::{PutResult, UploadPart};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn parts_have_one_size_and_hold_every_byte() {
        let pieces = ["abc", "", "defgh", "i", "jk"].map(|piece| Bytes::from_static(piece.as_bytes()));
        for (size, expected) in [
            (4, vec!["abcd", "efgh", "ijk"]),
            (11, vec!["abcdefghijk"]),
            (100, vec!["abcdefghijk"]),
            (1, "abcdefghijk".split("").filter(|s| !s.is_empty()).collect()),
        ] {
            let parts = in_parts(pieces.clone().into_iter(), size);
            let texts: Vec<String> = parts
                .map(|part| String::from_utf8(Bytes::from(part).to_vec()).unwrap())
                .collect();
            assert_eq!(texts, expected, "{size}");
        }
        assert_eq!(in_parts([Bytes::new()].into_iter(), 4).count(), 0);
    }

    /// An upload in which the part with one number fails, and each part takes this long.
    #[derive(Debug)]
    struct Upload {
        fails_at: usize,
        takes: Duration,
        parts: usize,
        under_way: Arc<AtomicUsize>,
        most_under_way: Arc<AtomicUsize>,
        aborted: usize,
        completed: usize,
    }

    impl Upload {
        fn failing_at(fails_at: usize) -> Upload {
            Upload {
                fails_at,
                takes: Duration::ZERO,
                parts: 0,
                under_way: Arc::default(),
                most_under_way: Arc::default(),
                aborted: 0,
                completed: 0,
            }
        }
    }

    impl MultipartUpload for Upload {
        fn put_part(&mut self, _: PutPayload) -> UploadPart {
            self.parts += 1;
            let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_under_way.fetch_max(now, Ordering::Relaxed);
            let (fails, under_way) = (self.parts == self.fails_at, Arc::clone(&self.under_way));
            let takes = self.takes;
            Box::pin(async move {
                tokio::time::sleep(takes).await;
                under_way.fetch_sub(1, Ordering::Relaxed);
                match fails {
                    true => Err(object_store::Error::NotImplemented),
                    false => Ok(()),
                }
            })
        }

        fn complete<'a, 'b>(&'a mut self) -> BoxFuture<'b, object_store::Result<PutResult>>
        where
            'a: 'b,
            Self: 'b,
        {
            self.completed += 1;
            let result = PutResult {
                e_tag: None,
                version: None,
            };
            Box::pin(async { Ok(result) })
        }

        fn abort<'a, 'b>(&'a mut self) -> BoxFuture<'b, object_store::Result<()>>
        where
            'a: 'b,
            Self: 'b,
        {
            self.aborted += 1;
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn an_upload_that_fails_takes_its_parts_back() {
        let file = ShardFile::from(vec![0; 4 * PART_BYTES + 1]);
        let limit = RateLimit::new(None);
        let mut sound = Upload::failing_at(0);
        put_parts(&mut sound, &file, &limit).await.unwrap();
        assert_eq!((sound.parts, sound.completed, sound.aborted), (5, 1, 0));
        for fails_at in [1, 5] {
            let mut failing = Upload::failing_at(fails_at);
            assert!(put_parts(&mut failing, &file, &limit).await.is_err());
            assert_eq!((failing.completed, failing.aborted), (0, 1), "{fails_at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fast_parts_run_with_more_concurrency() {
        let file = ShardFile::from(vec![0; 20 * PART_BYTES]);
        for (takes, most, seconds) in [
            (1, PARTS_AT_ONCE_MAX, 4),
            (5, PARTS_AT_ONCE, 50),
            (20, PARTS_AT_ONCE, 380),
        ] {
            let takes = Duration::from_secs(takes);
            let mut upload = Upload {
                takes,
                ..Upload::failing_at(0)
            };
            let began = Instant::now();
            put_parts(&mut upload, &file, &RateLimit::new(None))
                .await
                .unwrap();
            assert_eq!(upload.most_under_way.load(Ordering::Relaxed), most, "{takes:?}");
            // Parts that are slow are uploaded one by one, after the first one has ended.
            let took = began.elapsed().as_secs();
            assert!((seconds..=seconds + 1).contains(&took), "{takes:?}: {took} s");
        }
    }
}
