use super::*;
use crate::coordinator::runtime;
use kube::Client;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::time::Duration;

/// Longer than any attempt to connect takes on one machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The proxy that is used for `https://a.b.example:6443` with these environment variables.
fn in_environment(named: Option<&str>, environment: &[(&str, &str)]) -> Option<String> {
    let server = Server {
        is_tls: true,
        host: "a.b.example",
        port: 6443,
    };
    let variable = |name: &str| {
        let found = environment.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    chosen(server, named, variable).map(|(_, proxy)| proxy)
}

#[test]
fn the_kubeconfigs_proxy_comes_first_then_the_environments() {
    let both = [
        ("https_proxy", "http://lower:1"),
        ("HTTPS_PROXY", "http://upper:1"),
    ];
    assert_eq!(in_environment(None, &[]), None);
    assert_eq!(in_environment(None, &both).as_deref(), Some("http://upper:1"));
    assert_eq!(
        in_environment(None, &both[..1]).as_deref(),
        Some("http://lower:1")
    );
    assert_eq!(
        in_environment(None, &[("HTTPS_PROXY", ""), both[0]]).as_deref(),
        Some("http://lower:1")
    );
    assert_eq!(in_environment(None, &[("HTTP_PROXY", "http://plain:1")]), None);
    assert_eq!(
        in_environment(None, &[("HTTPS_PROXY", "proxy:3128")]).as_deref(),
        Some("http://proxy:3128")
    );
    let named = Some("socks5://own:1080");
    assert_eq!(in_environment(named, &both).as_deref(), named);
    assert_eq!(in_environment(named, &[("NO_PROXY", "*")]).as_deref(), named);
}

#[test]
fn what_no_proxy_names_is_reached_without_one() {
    for (no_proxy, host, exempt) in [
        ("", "a.b.example", false),
        ("*", "a.b.example", true),
        ("other, *,", "a.b.example", true),
        ("a.b.example", "a.b.example", true),
        ("b.example", "a.b.example", true),
        (".b.example", "a.b.example", true),
        ("*.B.example", "A.b.example", true),
        (".a.b.example", "a.b.example", false),
        ("b.example", "ab.example", false),
        ("other,,a.b.example:6443", "a.b.example", true),
        ("a.b.example:443", "a.b.example", false),
        ("10.0.0.0/8", "10.1.2.3", true),
        ("10.0.0.0/8", "11.1.2.3", false),
        ("10.1.2.3", "10.1.2.3", true),
        ("10.1.2.3:6443", "10.1.2.3", true),
        ("10.1.2.3:80", "10.1.2.3", false),
        ("fd00::/8", "fd00::7", true),
        ("fd00::7", "fd00::7", true),
        ("[fd00::7]:6443", "fd00::7", true),
        ("", "localhost", true),
        ("", "127.0.0.1", true),
        ("", "::1", true),
    ] {
        let server = Server {
            is_tls: true,
            host,
            port: 6443,
        };
        assert_eq!(is_exempt(server, no_proxy), exempt, "{no_proxy:?}, {host}");
    }
    let proxy = ("HTTPS_PROXY", "http://proxy:3128");
    assert_eq!(in_environment(None, &[proxy, ("NO_PROXY", ".example")]), None);
    assert_eq!(in_environment(None, &[proxy, ("no_proxy", ".example")]), None);
    assert!(in_environment(None, &[proxy, ("NO_PROXY", "proxy")]).is_some());
}

#[test]
fn the_proxy_of_a_context_is_that_of_its_cluster() {
    let kubeconfig = Kubeconfig::from_yaml(
        "
current-context: near
contexts:
- {name: near, context: {cluster: one, user: u}}
- {name: far, context: {cluster: two, user: u}}
clusters:
- {name: one, cluster: {server: 'https://one.example'}}
- {name: two, cluster: {server: 'https://two.example', proxy-url: 'socks5://proxy:1080'}}
users: []
",
    )
    .unwrap();
    assert_eq!(of_context(&kubeconfig, None), None);
    assert_eq!(
        of_context(&kubeconfig, Some("far")).as_deref(),
        Some("socks5://proxy:1080")
    );
    assert_eq!(of_context(&kubeconfig, Some("nowhere")), None);
}

/// A configuration that uses no certificates of this machine.
fn config() -> Config {
    let mut config = Config::new("https://cluster.example:6443".parse().unwrap());
    config.root_cert = Some(Vec::new());
    config
}

#[test]
fn an_api_server_is_asked_for_through_the_proxy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let (connection, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line).unwrap();
        line
    });
    let mut config = config();
    set(&mut config, None, |name| {
        (name == "HTTPS_PROXY").then(|| proxy.clone())
    })
    .unwrap();
    runtime().unwrap().block_on(async {
        let client = Client::try_from(config).unwrap();
        // The proxy does not answer, so this fails.
        let answer = tokio::time::timeout(PATIENCE, client.apiserver_version()).await;
        assert!(answer.is_ok_and(|answer| answer.is_err()));
    });
    assert_eq!(asked.join().unwrap(), "CONNECT cluster.example:6443 HTTP/1.1\r\n");
}

#[test]
fn this_build_knows_socks_and_says_what_is_no_url() {
    let mut config = config();
    set(&mut config, Some("socks5://127.0.0.1:1080"), |_| None).unwrap();
    let made = runtime()
        .unwrap()
        .block_on(async { Client::try_from(config.clone()).is_ok() });
    assert!(made);
    let why = set(&mut config, Some("http://a b"), |_| None).unwrap_err();
    assert!(
        why.to_string().contains("proxy-url in the kubeconfig is no URL"),
        "{why}"
    );
    assert!(set(&mut config, None, |_| None).is_ok_and(|()| config.proxy_url.is_none()));
}
