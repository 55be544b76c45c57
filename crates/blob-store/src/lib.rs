//! Opens a place on a blob store by its URL.
//!
//! This crate owns how a URL becomes a store, and where credentials come from. It does not know what is stored there.

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use url::{Position, Url};

/// Prefixes of the environment variables that the clouds' own tools use.
const PREFIXES: [&str; 3] = ["aws_", "azure_", "google_"];
/// Variables that Azure sets on a machine with an identity.
const AZURE_IDENTITY: [&str; 2] = ["identity_endpoint", "msi_endpoint"];

/// The schemes of URLs of stores, but for those of files and of addresses of a cloud's servers.
const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"];
/// What is allowed, for people.
const ALLOWED: &str = "a path, or a URL that begins with file://, s3://, gs:// or az://";

/// A place on a store. It need not exist.
#[derive(Clone, Debug)]
pub struct Place {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The same store, if it is this machine's disk.
    pub disk: Option<Arc<LocalFileSystem>>,
    /// The place on it.
    pub path: Path,
    /// Identifies the store: places with equal names are on the same one.
    pub name: String,
}

/// A URL that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{uri}: {why}")]
pub struct BadUrl {
    /// The text that was given.
    pub uri: String,
    /// What is wrong with it.
    pub why: String,
}

/// Turns a URI or a path into a URL. A local folder need not exist: the first write creates it, and a disk that is unavailable for a while
/// must not keep a worker from training.
fn to_url(uri: &str) -> Result<Url, BadUrl> {
    let wrong = |why: String| BadUrl {
        uri: uri.to_owned(),
        why,
    };
    let path = match Url::parse(uri) {
        // What follows would be dropped: two URLs would mean one place. It is not shown, because it may be a key.
        Ok(url) if url.scheme().len() > 1 && (url.query().is_some() || url.fragment().is_some()) => {
            let end = uri.find(['?', '#']).map_or(uri.len(), |at| at + 1);
            return Err(BadUrl {
                uri: format!("{}...", &uri[..end]),
                why:
                    "a URL with ? or #; allowed is that of a folder or an object, such as s3://bucket/folder"
                        .into(),
            });
        }
        Ok(url) if url.scheme() == "file" => url
            .to_file_path()
            .map_err(|()| wrong("not a path on this machine".into()))?,
        // One letter is a drive, not a scheme.
        Ok(url) if url.scheme().len() > 1 => return Ok(url),
        _ => PathBuf::from(uri),
    };
    let path = std::path::absolute(path).map_err(|e| wrong(e.to_string()))?;
    Url::from_directory_path(&path).map_err(|()| wrong("not an absolute path".into()))
}

/// Whether a URL is of a kind of store that this program knows. The library would answer with the names of its own features.
fn is_known(url: &Url) -> bool {
    match ObjectStoreScheme::parse(url) {
        Ok((scheme, _)) => scheme != ObjectStoreScheme::Http,
        // Where the scheme is known, it is the path that is wrong.
        Err(_) => url.has_host() && SCHEMES.contains(&url.scheme()),
    }
}

/// Like `object_store::parse_url_opts`, but requests fail early: the callers have their own retries.
fn build(url: &Url, settings: impl IntoIterator<Item = (String, String)>) -> object_store::Result<Place> {
    let (scheme, mut path) = ObjectStoreScheme::parse(url)?;
    if url.scheme() == "az" {
        // The host is the container, but the parser takes the first folder as container.
        path = Path::from_url_path(url.path())?;
    }
    let retry = RetryConfig {
        max_retries: 3,
        retry_timeout: Duration::from_secs(60),
        ..RetryConfig::default()
    };
    macro_rules! with_settings {
        ($builder:expr) => {
            settings
                .into_iter()
                .fold(
                    $builder.with_url(url.as_str()).with_retry(retry),
                    |builder, (key, value)| {
                        match key.parse() {
                            Ok(key) => builder.with_config(key, value),
                            // Not a variable of this store.
                            Err(_) => builder,
                        }
                    },
                )
                .build()?
        };
    }
    let disk = matches!(scheme, ObjectStoreScheme::Local).then(|| Arc::new(LocalFileSystem::new()));
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => Arc::new(with_settings!(AmazonS3Builder::new())),
        ObjectStoreScheme::GoogleCloudStorage => Arc::new(with_settings!(GoogleCloudStorageBuilder::new())),
        ObjectStoreScheme::MicrosoftAzure => Arc::new(with_settings!(MicrosoftAzureBuilder::new())),
        _ => match &disk {
            Some(disk) => Arc::clone(disk) as _,
            None => object_store::parse_url_opts(url, settings)?.0.into(),
        },
    };
    Ok(Place {
        // If the bucket is a part of the path, the store's name contains it.
        name: format!("{} {store}", &url[..Position::BeforePath]),
        store,
        disk,
        path,
    })
}

/// Opens a place: a path or `file://`, `s3://bucket/prefix`, `gs://...`, `az://...`.
/// Credentials, endpoints and further settings come from the environment variables that the cloud's own tools use
/// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, ...), workload identity or the
/// machine's metadata service.
///
/// # Errors
/// The URL does not belong to a known kind of store, or the environment has settings that do not fit. The store is not contacted yet.
pub fn open(uri: &str) -> Result<Place, BadUrl> {
    open_with(uri, settings_of(std::env::vars_os()))
}

/// The environment variables that are meant for stores. The stores would also accept names without the prefix of a cloud, such as another
/// program's `TOKEN` or `ENDPOINT`. An empty variable counts as unset, as in the clouds' own tools: an empty session token would be sent,
/// and refused.
fn settings_of(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, String)> {
    environment.into_iter().filter_map(|(name, value)| {
        let name = name.into_string().ok()?.to_ascii_lowercase();
        let meant =
            PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || AZURE_IDENTITY.contains(&name.as_str());
        Some((name, value.into_string().ok()?)).filter(|(_, value)| meant && !value.is_empty())
    })
}

/// Like [`open`], with `settings` instead of the environment: variable names in lower case, and values.
///
/// # Errors
/// As [`open`].
pub fn open_with(uri: &str, settings: impl IntoIterator<Item = (String, String)>) -> Result<Place, BadUrl> {
    let url = to_url(uri)?;
    let wrong = |why: String| BadUrl {
        uri: uri.to_owned(),
        why,
    };
    if !is_known(&url) {
        return Err(wrong(format!("no known kind of store; allowed is {ALLOWED}")));
    }
    build(&url, settings).map_err(|why| wrong(why.to_string()))
}

/// The path of a place on this machine's disk; none if the URL is another store's.
///
/// # Errors
/// The URI is neither a URL nor a path that can be made absolute.
pub fn local_path(uri: &str) -> Result<Option<PathBuf>, BadUrl> {
    Ok(to_url(uri)?.to_file_path().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lie_on_the_disk_and_urls_where_they_say() {
        assert_eq!(local_path("/a/b.bin").unwrap(), Some(PathBuf::from("/a/b.bin/")));
        assert_eq!(local_path("file:///a/b").unwrap(), Some(PathBuf::from("/a/b/")));
        assert!(local_path("data/kjv").unwrap().unwrap().is_absolute());
        assert_eq!(local_path("s3://bucket/a/b").unwrap(), None);
    }

    #[test]
    fn empty_and_foreign_variables_are_ignored() {
        use std::os::unix::ffi::OsStringExt;
        let of = |name: &str, value: &[u8]| (OsString::from(name), OsString::from_vec(value.to_vec()));
        let settings = settings_of([
            of("AWS_SESSION_TOKEN", b"a"),
            of("TOKEN", b"b"),
            of("ENDPOINT", b"c"),
            of("TIMEOUT", b"d"),
            of("GOOGLE_SERVICE_ACCOUNT", b"e"),
            of("AZURE_STORAGE_ACCOUNT_KEY", b"f"),
            of("IDENTITY_ENDPOINT", b"g"),
            of("AWS_REGION", b"\xff"),
            of("AWS_ENDPOINT", b""),
            of("LS_COLORS", b"\xff"),
        ]);
        let names: Vec<String> = settings.map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "aws_session_token",
                "google_service_account",
                "azure_storage_account_key",
                "identity_endpoint"
            ]
        );
    }

    #[test]
    fn a_bucket_has_a_name_and_a_path_in_it() {
        let of = |uri| open_with(uri, []).unwrap();
        let (a, b, other) = (of("s3://bucket/a/b.bin"), of("s3://bucket/c"), of("s3://other/a"));
        assert_eq!((a.path.as_ref(), b.path.as_ref()), ("a/b.bin", "c"));
        assert!(a.name == b.name && a.name != other.name && a.disk.is_none());
        let azure = |uri: &str| {
            let account = ("azure_storage_account_name".to_owned(), "me".to_owned());
            open_with(uri, [account]).unwrap()
        };
        let (a, b) = (azure("az://box/a/b"), azure("az://box/c"));
        assert_eq!((a.path.as_ref(), b.path.as_ref()), ("a/b", "c"));
        assert_eq!(a.name, b.name);
        let [a, b] = ["a", "b"].map(|box_| azure(&format!("https://me.blob.core.windows.net/{box_}/c")));
        assert_eq!((a.path.as_ref(), b.path.as_ref()), ("c", "c"));
        assert_ne!(a.name, b.name);
        assert!(open_with("/tmp", []).unwrap().disk.is_some());
        for uri in ["ftp://host/a", "http://host/a", "https://host/a"] {
            let why = open_with(uri, []).unwrap_err().to_string();
            assert_eq!(
                why,
                format!("{uri}: no known kind of store; allowed is {ALLOWED}")
            );
        }
    }

    #[test]
    fn a_url_whose_end_would_be_dropped_is_refused() {
        for (uri, shown) in [
            ("s3://bucket/a#1", "s3://bucket/a#...: "),
            ("gs://bucket/a?b=secret", "gs://bucket/a?...: "),
            ("file:///a#1", "file:///a#...: "),
        ] {
            let why = open_with(uri, []).unwrap_err().to_string();
            assert!(why.starts_with(shown) && why.contains("? or #"), "{why}");
            assert!(local_path(uri).is_err(), "{uri}");
        }
        // A path may have them.
        let of = |path| open_with(path, []).unwrap().path;
        assert_ne!(of("/a#1"), of("/a#2"));
        assert_eq!(local_path("/a?b").unwrap(), Some(PathBuf::from("/a?b/")));
    }
}
