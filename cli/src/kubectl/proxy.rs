//! Through which proxy an API server is reached: the same as kubectl uses. Pure, except [`set`], which writes the choice.
//!
//! This replaces kube's own choice: kube compares `NO_PROXY` with the proxy's host instead of the API server's, and there a name without a
//! port matches no server. The rules are those of Go's `golang.org/x/net/http/httpproxy`, which kubectl uses. hyper-util's matcher follows
//! curl's rules, which know no ports and do not exempt loopback addresses.

use crate::failure::Failure;
use ipnet::IpNet;
use kube::Config;
use kube::config::Kubeconfig;
use std::net::IpAddr;
use varuna_wire::address::split;

/// Where an API server listens.
#[derive(Clone, Copy)]
struct Server<'a> {
    /// Whether the scheme is `https`.
    is_tls: bool,
    /// Host name or address, without brackets.
    host: &'a str,
    port: u16,
}

/// The `proxy-url` of a context's cluster, of the current context where none is named.
pub(super) fn of_context(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|c| c.name == name)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig.clusters.iter().find(|c| c.name == *cluster)?;
    let proxy = named.cluster.as_ref()?.proxy_url.clone()?;
    (!proxy.is_empty()).then_some(proxy)
}

/// Sets the proxy through which the API server is reached. `named`: what the kubeconfig says; `variable`: the environment.
pub(super) fn set(
    config: &mut Config,
    named: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), Failure> {
    let is_tls = config.cluster_url.scheme_str() != Some("http");
    let server = Server {
        is_tls,
        host: bare(config.cluster_url.host().unwrap_or_default()),
        port: config
            .cluster_url
            .port_u16()
            .unwrap_or(if is_tls { 443 } else { 80 }),
    };
    config.proxy_url = match chosen(server, named, variable) {
        // Its value may hold a password.
        Some((from, proxy)) => Some(
            proxy
                .parse()
                .map_err(|e| Failure::Input(format!("{from} is no URL: {e}")))?,
        ),
        None => None,
    };
    Ok(())
}

/// The proxy, and where it is named; none where there is none for this server.
fn chosen(
    server: Server<'_>,
    named: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(&'static str, String)> {
    // The kubeconfig's own proxy is only for this cluster: NO_PROXY does not apply to it.
    if let Some(named) = named {
        return Some(("proxy-url in the kubeconfig", named.to_owned()));
    }
    let either = |upper, lower| {
        let value = |name| variable(name).filter(|value| !value.is_empty());
        value(upper).or_else(|| value(lower))
    };
    let (name, proxy) = if server.is_tls {
        (
            "HTTPS_PROXY or https_proxy",
            either("HTTPS_PROXY", "https_proxy")?,
        )
    } else {
        ("HTTP_PROXY or http_proxy", either("HTTP_PROXY", "http_proxy")?)
    };
    let exempt = either("NO_PROXY", "no_proxy").unwrap_or_default();
    if is_exempt(server, &exempt) {
        return None;
    }
    if proxy.contains("://") {
        return Some((name, proxy));
    }
    Some((name, format!("http://{proxy}")))
}

/// Whether the server is reached without the environment's proxy: this machine always, others as `NO_PROXY` says.
fn is_exempt(server: Server<'_>, no_proxy: &str) -> bool {
    let ip = server.host.parse::<IpAddr>().ok();
    if server.host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let host = server.host.to_lowercase();
    let entries = no_proxy.split(',').map(|entry| entry.trim().to_lowercase());
    let mut entries = entries.filter(|entry| !entry.is_empty());
    entries.any(|entry| {
        if entry == "*" {
            return true;
        }
        if let Ok(network) = entry.parse::<IpNet>() {
            return ip.is_some_and(|ip| network.contains(&ip));
        }
        let (name, port) = split(&entry).map_or((entry.as_str(), None), |(name, port)| (name, Some(port)));
        let is_host = match name.parse::<IpAddr>() {
            Ok(named) => ip == Some(named),
            Err(_) => is_in(&host, name),
        };
        is_host && port.is_none_or(|port| port == server.port)
    })
}

/// Whether an entry of `NO_PROXY` matches a host: `a.b` matches itself and all names below it, `.a.b` and `*.a.b` only the names below it.
fn is_in(host: &str, name: &str) -> bool {
    let name = name
        .strip_prefix('*')
        .filter(|n| n.starts_with('.'))
        .unwrap_or(name);
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|above| above.ends_with('.')),
    }
}

/// A host as it is in a URL, without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    let inside = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    inside.unwrap_or(host)
}

#[cfg(test)]
mod tests;
