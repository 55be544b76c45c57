use super::*;
use object_store::PutPayload;
use object_store::memory::InMemory;

const SMALL_CACHE: u64 = 4 * BLOCK_BYTES;

/// A store with one object named "a".
pub(crate) struct Rig {
    store: Arc<InMemory>,
    objects: Arc<Objects>,
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 1000).to_le_bytes()[0]).collect()
}

impl Rig {
    pub(crate) fn new(content: &[u8], cache_bytes: u64) -> Rig {
        let rig = Rig {
            store: Arc::new(InMemory::new()),
            objects: Objects::start(cache_bytes).unwrap(),
        };
        rig.put(content);
        rig
    }

    fn put(&self, content: &[u8]) {
        let (store, payload) = (Arc::clone(&self.store), PutPayload::from(content.to_vec()));
        let put = async move { store.put(&Path::from("a"), payload).await.map_err(to_io) };
        self.objects.wait_for(put).unwrap();
    }

    /// Number of bytes in the cache.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.objects.cache.weight()
    }

    pub(crate) fn delete(&self) {
        let store = Arc::clone(&self.store);
        let delete = async move { store.delete(&Path::from("a")).await.map_err(to_io) };
        self.objects.wait_for(delete).unwrap();
    }

    /// Waits for all announced blocks: when all permits are free, each of them has been fetched or has failed.
    pub(crate) fn wait_for_announced(&self) {
        let (announced, all) = (
            Arc::clone(&self.objects.announced),
            u32::try_from(ANNOUNCED).unwrap(),
        );
        let back = async move {
            announced
                .acquire_many(all)
                .await
                .map(drop)
                .map_err(io::Error::other)
        };
        self.objects.wait_for(back).unwrap();
    }

    pub(crate) fn open(&self, path: &str) -> io::Result<ObjectFile> {
        self.objects.open(Place {
            store: Arc::clone(&self.store) as _,
            disk: None,
            path: Path::from(path),
            name: "memory://".to_owned(),
        })
    }
}

#[test]
fn any_part_of_an_object_is_read_as_it_is() {
    let content = content(300_001);
    let rig = Rig::new(&content, SMALL_CACHE);
    let file = rig.open("a").unwrap();
    assert_eq!(file.len(), 300_001);
    for (offset, length) in [
        (0, 10),
        (65_530, 12),
        (65_536, 65_536),
        (10, 250_000),
        (300_000, 1),
        (300_001, 0),
    ] {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        assert!(bytes == content[offset..offset + length], "{offset}");
    }
    let past = file.read_exact_at(&mut [0; 2], 300_000).unwrap_err();
    assert_eq!(past.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(rig.open("b").err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn the_cache_keeps_what_it_may_and_no_more() {
    let content = content(40 * 65_536);
    let rig = Rig::new(&content, SMALL_CACHE);
    let file = rig.open("a").unwrap();
    let mut byte = [0];
    for round in 0..2 {
        for block in 0..40 {
            file.read_exact_at(&mut byte, block * BLOCK_BYTES).unwrap();
            assert_eq!(byte[0], content[usize::try_from(block * BLOCK_BYTES).unwrap()]);
            assert!(rig.objects.cache.weight() <= SMALL_CACHE, "{round}, {block}");
        }
    }
    assert!(rig.objects.cache.weight() > 0);
}

#[test]
fn cached_blocks_are_reused_and_replaced_files_refused() {
    let rig = Rig::new(&content(200_000), 16 * SMALL_CACHE);
    let file = rig.open("a").unwrap();
    let mut bytes = [0; 100];
    file.read_exact_at(&mut bytes, 0).unwrap();
    // Another object with this name and the same length.
    rig.put(&[1; 200_000]);
    let mut again = [0; 100];
    file.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(again, bytes, "from the cache");
    let why = file.read_exact_at(&mut again, 100_000).unwrap_err().to_string();
    assert!(why.contains("replaced"), "{why}");
    // If the file is opened again, the new content is read.
    let new = rig.open("a").unwrap();
    new.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(again, [1; 100]);
}

#[test]
fn announced_blocks_stay_in_a_full_cache() {
    let content = content(600 * 65_536);
    let rig = Rig::new(&content, 128 * BLOCK_BYTES);
    let file = rig.open("a").unwrap();
    let mut byte = [0];
    for block in 0..500 {
        file.read_exact_at(&mut byte, block * BLOCK_BYTES).unwrap();
    }
    file.prefetch(500 * BLOCK_BYTES..540 * BLOCK_BYTES);
    rig.wait_for_announced();
    let there = (500..540).filter(|block| rig.objects.cache.peek(&(0, *block)).is_some());
    assert_eq!(there.count(), 40);
}

#[test]
fn failed_prefetch_is_read_later() {
    let rig = Rig::new(&content(200_000), SMALL_CACHE);
    let file = rig.open("a").unwrap();
    rig.delete();
    file.prefetch(0..BLOCK_BYTES);
    rig.wait_for_announced();
    let gone = file.read_exact_at(&mut [0; 9], 0).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    rig.put(&content(200_000));
    let again = rig.open("a").unwrap();
    again.read_exact_at(&mut [0; 9], 0).unwrap();
}

#[test]
fn what_is_announced_is_there_without_being_read() {
    let content = content(10 * 65_536);
    let rig = Rig::new(&content, 16 * SMALL_CACHE);
    let file = rig.open("a").unwrap();
    file.prefetch(65_536..4 * 65_536);
    rig.wait_for_announced();
    let cached = |block| rig.objects.cache.peek(&(0, block)).is_some();
    assert_eq!([0, 1, 2, 3, 4].map(cached), [false, true, true, true, false]);
    // Beyond the end of the file, announcements have no effect.
    file.prefetch(20 * 65_536..u64::MAX);
}

#[test]
fn a_thread_of_another_runtime_may_read_and_end_reading() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let rig = Rig::new(&content(1000), SMALL_CACHE);
        let mut bytes = [0; 10];
        rig.open("a").unwrap().read_exact_at(&mut bytes, 0).unwrap();
        drop(rig);
    });
}
