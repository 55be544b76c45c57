//! Who may reach a coordinator that is started here, and how it shows that it is the right one.

use crate::failure::Failure;
use rand::TryRngCore as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use varuna_coordinator::Identity;
use varuna_run_folder::{Access, Durability, RunFiles, replace_file};

/// What clients of the coordinator's port must show.
#[derive(clap::Args)]
pub(crate) struct Security {
    /// Use TLS, with certificate.pem and key.pem of the run folder. They are created if they do not exist. Workers need the certificate:
    /// varuna-worker --certificate "$(cat certificate.pem)".
    #[arg(long)]
    tls: bool,
    /// Accept connections from other machines without a token or without TLS. Use this only in a network that encrypts and keeps strangers
    /// out by itself.
    #[arg(long)]
    insecure: bool,
}

impl Security {
    /// Refuses an address that other machines can reach, if they would need no token or could listen to the traffic.
    pub(crate) fn check(&self, bind: &str, token: &str) -> Result<(), Failure> {
        let missing = match (token.is_empty(), self.tls) {
            (false, true) => return Ok(()),
            (true, true) => "a token: give one with VARUNA_TOKEN or --token",
            (false, false) => "TLS: give --tls",
            (true, false) => "a token and TLS: give --tls, and a token with VARUNA_TOKEN or --token",
        };
        if self.insecure || stays_here(bind) {
            return Ok(());
        }
        Err(Failure::Input(format!(
            "--bind {bind}: beyond this machine a coordinator needs {missing}. Or give --insecure, where the network itself \
             encrypts and keeps strangers out"
        )))
    }

    /// The coordinator's certificate: the run folder's, made where there is none; none without TLS. A key without a certificate, as a crash
    /// between the two leaves it, gets one.
    pub(crate) fn identity(&self, folder: &Path) -> Result<Option<Identity>, Failure> {
        if !self.tls {
            return Ok(None);
        }
        let files = RunFiles::new(folder);
        let (certificate, key) = (files.certificate_path(), files.private_key_path());
        if !certificate.exists() {
            let made = if key.exists() {
                Identity::of_private_key(&read(&key)?).map_err(|e| {
                    let key = key.display();
                    Failure::Input(format!(
                        "--tls: {key} holds no private key (PEM) that a certificate can be made for: {e}"
                    ))
                })?
            } else {
                let made = Identity::self_signed()
                    .map_err(|e| Failure::Internal(format!("no certificate can be made: {e}")))?;
                write(&key, &made.key, Access::OwnerOnly)?;
                made
            };
            write(&certificate, &made.certificate, Access::Everyone)?;
        }
        Ok(Some(Identity {
            certificate: read(&certificate)?,
            key: read(&key)?,
        }))
    }
}

/// A new run's token: 128 random bits in hex.
pub(crate) fn token() -> Result<String, Failure> {
    let mut bytes = [0u8; 16];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|e| Failure::Internal(format!("no random bytes: {e}")))?;
    Ok(hex::encode(bytes))
}

/// The loopback address that this machine has.
pub(crate) fn loopback() -> String {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let has_v4 = std::net::TcpListener::bind(v4).is_ok();
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if has_v4 { v4 } else { v6 }.to_string()
}

/// Whether only processes of this machine reach an address. If listening on it is impossible, the attempt says why.
fn stays_here(bind: &str) -> bool {
    bind.to_socket_addrs()
        .map_or(true, |mut addresses| addresses.all(|a| a.ip().is_loopback()))
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|e| Failure::Input(format!("--tls: cannot read {}: {e}", path.display())))
}

fn write(path: &Path, text: &str, access: Access) -> Result<(), Failure> {
    replace_file(path, text, access, Durability::Synced)
        .map_err(|e| Failure::Input(format!("--tls: cannot write {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tls: bool, insecure: bool, bind: &str, token: &str) -> Option<String> {
        let security = Security { tls, insecure };
        security.check(bind, token).err().map(|e| e.to_string())
    }

    #[test]
    fn beyond_this_machine_a_coordinator_needs_a_token_and_tls() {
        for here in ["127.0.0.1:0", "127.77.1.2:7070", "[::1]:0", "localhost:0"] {
            assert_eq!(said(false, false, here, ""), None, "{here}");
        }
        for beyond in ["0.0.0.0:0", "[::]:7070", "10.1.2.3:7070"] {
            let why = |tls, token| said(tls, false, beyond, token).unwrap();
            assert!(why(false, "").contains("a token and TLS: give --tls"), "{beyond}");
            assert!(why(true, "").contains("a token: give one with VARUNA_TOKEN"));
            assert!(why(false, "t").contains("TLS: give --tls") && why(false, "t").contains("--insecure"));
            assert_eq!(said(true, false, beyond, "t"), None);
            assert_eq!(said(false, true, beyond, ""), None);
        }
        assert_eq!(
            said(false, false, "256.0.0.1:1", ""),
            None,
            "the attempt to listen fails"
        );
    }

    #[test]
    fn a_run_keeps_its_certificate_and_its_key_is_its_owners() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let identity = |tls| {
            let security = Security { tls, insecure: false };
            security.identity(temp.path()).unwrap()
        };
        assert_eq!(identity(false), None);
        let made = identity(true);
        assert!(
            made.as_ref()
                .is_some_and(|i| i.certificate.contains("BEGIN CERTIFICATE"))
        );
        assert_eq!(identity(true), made);
        let mode = |name: &str| {
            std::fs::metadata(temp.path().join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!((mode("certificate.pem"), mode("key.pem")), (0o644, 0o600));
        // As a crash between the two leaves it.
        std::fs::remove_file(temp.path().join("certificate.pem")).unwrap();
        let again = identity(true);
        assert_eq!(
            again.as_ref().map(|i| &i.key),
            made.as_ref().map(|i| &i.key),
            "the key stays"
        );
        assert_eq!(identity(true), again);
        std::fs::remove_file(temp.path().join("key.pem")).unwrap();
        let lone = Security {
            tls: true,
            insecure: false,
        }
        .identity(temp.path());
        assert!(lone.unwrap_err().to_string().contains("key.pem"));
    }
}
