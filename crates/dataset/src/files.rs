//! The files of datasets: on this machine, or objects on a blob store.

#[cfg(feature = "store")]
mod objects;
#[cfg(all(test, feature = "store"))]
pub(crate) use objects::tests::Rig;

use crate::error::DataError;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that a sequential reader reads at once. Requests to a store are made ahead of it.
const READ_BYTES: usize = 64 << 10;
/// How far ahead requests are made, bytes.
const AHEAD_BYTES: u64 = 2 << 20;
/// Maximum bytes that all files on stores together keep in memory.
const CACHE_BYTES: u64 = 256 << 20;
/// Maximum bytes in transit from stores.
const UNDER_WAY_BYTES: u64 = 8 << 20;

/// Opens files. Files on stores share a cache and connections.
#[derive(Default)]
pub(crate) struct Files {
    #[cfg(feature = "store")]
    objects: std::sync::OnceLock<std::sync::Arc<objects::Objects>>,
}

/// An open file.
pub(crate) enum DataFile {
    /// A file on this machine, or on a mounted file system.
    Local(File),
    /// A file on a store.
    #[cfg(feature = "store")]
    Object(objects::ObjectFile),
}

/// Host memory that reading these data needs, bytes: the cache for stores, and data in transit.
#[must_use]
pub fn cache_bytes(data: &varuna_api::Data) -> u64 {
    let held_out = match &data.held_out {
        varuna_api::HeldOut::Dataset(path) => Some(path),
        varuna_api::HeldOut::Fraction(_) => None,
    };
    let mut paths = data.train.iter().map(|source| &source.path).chain(held_out);
    match paths.any(|path| scheme(Path::new(path)).is_some_and(|scheme| scheme != "file")) {
        true => CACHE_BYTES + UNDER_WAY_BYTES,
        false => 0,
    }
}

/// The scheme of a URL; none for a path.
pub(crate) fn scheme(path: &Path) -> Option<&str> {
    let (scheme, _) = path.to_str()?.split_once("://")?;
    (scheme.len() > 1).then_some(scheme)
}

impl Files {
    /// Opens a file by its path or URL.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub(crate) fn open(&self, path: &Path) -> Result<DataFile, DataError> {
        match scheme(path) {
            Some(_) => self.open_object(path),
            None => File::open(path)
                .map(DataFile::Local)
                .map_err(DataError::io("open", path)),
        }
    }

    #[cfg(feature = "store")]
    fn open_object(&self, path: &Path) -> Result<DataFile, DataError> {
        let url = path.to_string_lossy();
        // It names the URL without what may be a key.
        let wrong = |bad: varuna_blob_store::BadUrl| DataError::Io {
            action: "open",
            path: bad.uri.into(),
            source: io::Error::new(ErrorKind::InvalidInput, bad.why),
        };
        let place = varuna_blob_store::open(&url).map_err(wrong)?;
        if place.disk.is_some() {
            let path = varuna_blob_store::local_path(&url).map_err(wrong)?;
            // Remove the slash that ends the path of a folder.
            let path = path
                .iter()
                .flat_map(|p| p.components())
                .collect::<std::path::PathBuf>();
            let opened = File::open(&path).map(DataFile::Local);
            return opened.map_err(DataError::io("open", &path));
        }
        let objects = match self.objects.get() {
            Some(objects) => objects,
            None => {
                let started = objects::Objects::start(CACHE_BYTES).map_err(DataError::io("open", path))?;
                self.objects.get_or_init(|| started)
            }
        };
        let opened = objects.open(place).map(DataFile::Object);
        opened.map_err(DataError::io("open", path))
    }

    #[cfg(not(feature = "store"))]
    #[expect(clippy::unused_self, reason = "as with stores")]
    fn open_object(&self, path: &Path) -> Result<DataFile, DataError> {
        let why = "this program reads no datasets from stores";
        Err(DataError::io("open", path)(io::Error::new(
            ErrorKind::Unsupported,
            why,
        )))
    }

    /// The content of a file of at most `most` bytes; none if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, or is longer.
    pub(crate) fn read_if_there(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>, DataError> {
        let file = match self.open(path) {
            Ok(file) => file,
            Err(DataError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = file.len().map_err(DataError::io("read", path))?;
        if length > most {
            let allowed = format!("at most {most} for this file");
            return Err(DataError::malformed(path, "length in bytes", length, allowed));
        }
        let mut bytes = Vec::new();
        let read = file.reader(0).read_to_end(&mut bytes);
        read.map_err(DataError::io("read", path))?;
        Ok(Some(bytes))
    }
}

impl DataFile {
    /// Length of the file, in bytes.
    pub(crate) fn len(&self) -> io::Result<u64> {
        match self {
            DataFile::Local(file) => Ok(file.metadata()?.len()),
            #[cfg(feature = "store")]
            DataFile::Object(object) => Ok(object.len()),
        }
    }

    /// Fills `bytes` with the file's bytes from `offset` on.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            DataFile::Local(file) => file.read_exact_at(bytes, offset),
            #[cfg(feature = "store")]
            DataFile::Object(object) => object.read_exact_at(bytes, offset),
        }
    }

    /// Announces that these bytes will be read soon. They are loaded in the background, or not at all; the reader gets any errors.
    pub(crate) fn prefetch(&self, range: Range<u64>) {
        // For a local file the system reads ahead, and a page costs little.
        #[cfg(feature = "store")]
        if let DataFile::Object(object) = self {
            object.prefetch(range);
        }
        #[cfg(not(feature = "store"))]
        let _ = range;
    }

    /// Reads from `from` to the end, in order.
    pub(crate) fn reader(&self, from: u64) -> BufReader<InOrder<'_>> {
        let reader = InOrder {
            file: self,
            at: from,
            announced: from,
        };
        BufReader::with_capacity(READ_BYTES, reader)
    }
}

/// Reads a file from one position on.
pub(crate) struct InOrder<'a> {
    file: &'a DataFile,
    at: u64,
    /// The position up to which reads are announced.
    announced: u64,
}

impl Read for InOrder<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let end = self.file.len()?;
        let left = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let count = bytes.len().min(left);
        let ahead = end.min(self.at.saturating_add(AHEAD_BYTES));
        if ahead > self.announced {
            self.file.prefetch(self.announced..ahead);
            self.announced = ahead;
        }
        let bytes = &mut bytes[..count];
        self.file.read_exact_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for (url, expected) in [
            ("s3://bucket/a", "s3"),
            ("gs://b/c.bin", "gs"),
            ("file:///a", "file"),
        ] {
            assert_eq!(scheme(Path::new(url)), Some(expected));
        }
        for path in ["/a/b", "a://b", "data/kjv", "a:/b"] {
            assert_eq!(scheme(Path::new(path)), None);
        }
    }

    #[cfg(feature = "store")]
    #[test]
    fn a_file_url_is_a_local_file_and_an_odd_url_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        let files = Files::default();
        let url = format!("file://{}", path.display());
        let read = files.read_if_there(Path::new(&url), 3).unwrap();
        assert_eq!(read, Some(vec![1, 2, 3]));
        for (url, shown, why) in [
            ("s3://b/a#1.bin", "open s3://b/a#...: ", "a URL with ? or #"),
            ("s3://b/a?key=secret", "open s3://b/a?...: ", "a URL with ? or #"),
            ("ftp://b/a", "open ftp://b/a: ", "allowed is a path, or a URL"),
        ] {
            let error = files.open(Path::new(url)).err().unwrap().to_string();
            assert!(error.contains(shown) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn data_on_stores_take_memory_for_what_is_cached() {
        let of = |path: &str, held_out| varuna_api::Data {
            train: vec![varuna_api::DataSource {
                path: path.to_owned(),
                weight: 1.0,
            }],
            held_out,
        };
        let fraction = varuna_api::HeldOut::Fraction(0.1);
        for local in ["/data/a", "file:///data/a"] {
            assert_eq!(cache_bytes(&of(local, fraction.clone())), 0);
        }
        assert!(cache_bytes(&of("s3://b/a", fraction)) > CACHE_BYTES);
        let validation = varuna_api::HeldOut::Dataset("gs://b/v".to_owned());
        assert!(cache_bytes(&of("/data/a", validation)) > CACHE_BYTES);
    }

    #[test]
    fn a_file_is_read_in_order_and_at_any_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let content: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
        std::fs::write(&path, &content).unwrap();
        let files = Files::default();
        let length = content.len() as u64;
        assert_eq!(files.read_if_there(&path, length).unwrap().unwrap(), content);
        let error = files.read_if_there(&path, length - 1).unwrap_err().to_string();
        assert!(error.contains("at most"), "{error}");
        assert_eq!(files.read_if_there(&folder.path().join("b"), 1).unwrap(), None);
        let file = files.open(&path).unwrap();
        let mut rest = Vec::new();
        file.reader(150_000).read_to_end(&mut rest).unwrap();
        assert_eq!(rest, content[150_000..]);
        let mut some = [0; 7];
        file.read_exact_at(&mut some, 99).unwrap();
        assert_eq!(some, content[99..106]);
        assert!(file.read_exact_at(&mut some, 199_999).is_err());
    }
}
