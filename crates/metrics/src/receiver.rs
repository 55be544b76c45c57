//! Where figures are sent, by the standard variables of OpenTelemetry. Pure: the variables are an argument. The header variables, which may hold
//! keys, are not read here: the crate that sends reads them itself.

use http::Uri;
use std::ffi::OsString;
use std::time::Duration;

const METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PROTOCOL: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const TIMEOUT: [&str; 2] = ["OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const EXPORTER: &str = "OTEL_METRICS_EXPORTER";

/// The path of metrics below an endpoint for all signals, by the specification of OTLP over HTTP.
const HTTP_PATH: &str = "/v1/metrics";
/// The specification's default.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(60);
/// More often a run has nothing new to say: views are made at most twenty times a second.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The specification's default.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// A shorter one would be no time to answer.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// No specification has a longest time. Who means for ever may get a day.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How figures are carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Over gRPC.
    Grpc,
    /// As protobuf over HTTP/1.1.
    Http,
}

/// Where figures are sent, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receiver {
    /// A URL; for HTTP with the path of metrics.
    pub(crate) endpoint: Uri,
    pub(crate) protocol: Protocol,
    /// How long one request may take, with all its retries.
    pub(crate) timeout: Duration,
    /// Time from one export to the next.
    pub(crate) interval: Duration,
    /// The service's name, if the user gives one.
    pub(crate) service: Option<String>,
}

/// Why no figures can be sent.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// The value of a variable cannot be used.
    #[error("{variable}: {value} — {allowed}")]
    Value {
        /// Name of the variable.
        variable: &'static str,
        /// Its value, without what may be a password or a key.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// The value of a variable is not Unicode text.
    #[error("{0}: its value is not Unicode text")]
    NotText(&'static str),
    /// Nothing can be set up that sends.
    #[error("figures cannot be sent to {endpoint}: {why}")]
    Client {
        /// The receiver.
        endpoint: String,
        /// Description of the error.
        why: String,
    },
}

impl Receiver {
    /// The receiver that the environment of this process names; none if it names none.
    ///
    /// # Errors
    /// The value of a variable cannot be used.
    pub fn from_environment() -> Result<Option<Receiver>, ReceiverError> {
        Receiver::from_variables(|name| std::env::var_os(name))
    }

    /// The same for any variables. An empty one counts as missing.
    ///
    /// # Errors
    /// The value of a variable cannot be used.
    pub fn from_variables(
        variables: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Receiver>, ReceiverError> {
        let value = |name: &'static str| text(&variables, name);
        let is_off = value(DISABLED)?.is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || value(EXPORTER)?.is_some_and(|list| list.split(',').all(|one| one.trim() != "otlp"));
        let (own, shared) = (value(METRICS_ENDPOINT)?, value(ENDPOINT)?);
        if is_off || own.is_none() && shared.is_none() {
            return Ok(None);
        }
        let protocol = match first(&value, PROTOCOL)? {
            None => Protocol::Http,
            Some((variable, name)) => protocol(variable, &name)?,
        };
        let endpoint = match (own, shared) {
            (Some(own), _) => url(METRICS_ENDPOINT, &own, "")?,
            (None, shared) => {
                let path = if protocol == Protocol::Http { HTTP_PATH } else { "" };
                url(ENDPOINT, &shared.unwrap_or_default(), path)?
            }
        };
        let timeout = match first(&value, TIMEOUT)? {
            None => TIMEOUT_DEFAULT,
            Some((variable, time)) => milliseconds(variable, &time, TIMEOUT_MIN)?,
        };
        let interval = match value(INTERVAL)? {
            None => INTERVAL_DEFAULT,
            Some(time) => milliseconds(INTERVAL, &time, INTERVAL_MIN)?,
        };
        Ok(Some(Receiver {
            endpoint,
            protocol,
            timeout,
            interval,
            service: value(SERVICE_NAME)?,
        }))
    }

    /// The receiver for messages: without a path, where some services expect a key.
    pub(crate) fn shown(&self) -> String {
        let host = self.endpoint.host().unwrap_or_default();
        let port = self
            .endpoint
            .port()
            .map_or(String::new(), |port| format!(":{port}"));
        format!(
            "{}://{host}{port}",
            self.endpoint.scheme_str().unwrap_or_default()
        )
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.endpoint.scheme() == Some(&http::uri::Scheme::HTTPS)
    }
}

/// A variable's value; none if it is missing or empty.
fn text(
    variables: &impl Fn(&str) -> Option<OsString>,
    name: &'static str,
) -> Result<Option<String>, ReceiverError> {
    let Some(value) = variables(name) else {
        return Ok(None);
    };
    let value = value.into_string().map_err(|_| ReceiverError::NotText(name))?;
    let value = value.trim();
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

/// The first of these variables that has a value.
fn first(
    value: &impl Fn(&'static str) -> Result<Option<String>, ReceiverError>,
    names: [&'static str; 2],
) -> Result<Option<(&'static str, String)>, ReceiverError> {
    for name in names {
        if let Some(found) = value(name)? {
            return Ok(Some((name, found)));
        }
    }
    Ok(None)
}

fn protocol(variable: &'static str, value: &str) -> Result<Protocol, ReceiverError> {
    match value {
        "grpc" => Ok(Protocol::Grpc),
        "http/protobuf" => Ok(Protocol::Http),
        other => Err(ReceiverError::Value {
            variable,
            value: other.to_owned(),
            allowed: "grpc or http/protobuf".to_owned(),
        }),
    }
}

/// A URL, with a path added to its own.
fn url(variable: &'static str, value: &str, path: &str) -> Result<Uri, ReceiverError> {
    let whole = match path {
        "" => value.to_owned(),
        path => format!("{}{path}", value.trim_end_matches('/')),
    };
    let parsed = whole.parse::<Uri>().ok();
    let is_usable = |uri: &Uri| {
        let scheme = uri.scheme_str();
        matches!(scheme, Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    };
    parsed.filter(is_usable).ok_or_else(|| ReceiverError::Value {
        variable,
        value: without_secrets(value),
        allowed: "a URL, such as http://HOST:4318 or https://HOST:4318 (for gRPC the port is mostly 4317)"
            .to_owned(),
    })
}

/// An endpoint for messages: without what stands before the host, which may be a password, and after it, which may be a key.
fn without_secrets(value: &str) -> String {
    let scheme = value.find("://").map_or(0, |at| at + "://".len());
    let (_, rest) = value.split_at(scheme);
    let host = rest.find(['/', '?', '#']).map_or(rest.len(), |at| at + 1);
    let (kept, cut) = value.split_at(scheme + host);
    if cut.contains('@') {
        // Perhaps a password with a slash in it.
        return "...".to_owned();
    }
    let kept = kept
        .rsplit_once('@')
        .map_or(kept.to_owned(), |(_, host)| format!("...@{host}"));
    match cut {
        "" => kept,
        _ => format!("{kept}..."),
    }
}

fn milliseconds(variable: &'static str, value: &str, least: Duration) -> Result<Duration, ReceiverError> {
    let time = value.parse().ok().map(Duration::from_millis);
    time.filter(|time| (least..=LONGEST).contains(time))
        .ok_or_else(|| ReceiverError::Value {
            variable,
            value: value.to_owned(),
            allowed: format!(
                "a whole number of milliseconds from {} to {}",
                least.as_millis(),
                LONGEST.as_millis()
            ),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(variables: &[(&str, &str)]) -> Result<Option<Receiver>, String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Receiver::from_variables(value).map_err(|e| e.to_string())
    }

    fn named(variables: &[(&str, &str)]) -> Receiver {
        receiver(variables).unwrap().unwrap()
    }

    #[test]
    fn nothing_is_sent_unless_an_endpoint_is_named() {
        let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "key=secret");
        for variables in [
            &[][..],
            &[(ENDPOINT, "")],
            &[(PROTOCOL[1], "grpc"), headers, (INTERVAL, "1000")],
            &[(ENDPOINT, "http://c:4318"), (DISABLED, "true")],
            &[(ENDPOINT, "http://c:4318"), (EXPORTER, "none")],
            &[(METRICS_ENDPOINT, "http://c:4318"), (EXPORTER, "prometheus")],
        ] {
            assert_eq!(receiver(variables), Ok(None), "{variables:?}");
        }
        for variables in [
            &[(ENDPOINT, "http://c:4318")][..],
            &[(ENDPOINT, "http://c:4318"), (DISABLED, "false")],
            &[
                (METRICS_ENDPOINT, "http://c:4318"),
                (EXPORTER, "prometheus, otlp"),
            ],
        ] {
            assert!(receiver(variables).unwrap().is_some(), "{variables:?}");
        }
    }

    #[test]
    fn the_standard_variables_and_defaults_give_a_receiver() {
        let plain = named(&[(ENDPOINT, "http://c:4318/")]);
        assert_eq!(plain.endpoint.to_string(), "http://c:4318/v1/metrics");
        assert_eq!(plain.protocol, Protocol::Http);
        assert_eq!(
            (plain.timeout, plain.interval),
            (TIMEOUT_DEFAULT, INTERVAL_DEFAULT)
        );
        assert_eq!(plain.service, None);
        let below = named(&[(ENDPOINT, "https://c/otlp")]);
        assert_eq!(below.endpoint.to_string(), "https://c/otlp/v1/metrics");
        assert!(below.is_encrypted() && !plain.is_encrypted());
        let own = named(&[
            (ENDPOINT, "not used"),
            (METRICS_ENDPOINT, "http://m:4318/here"),
            (TIMEOUT[0], "500"),
            (TIMEOUT[1], "7000"),
            (INTERVAL, "2000"),
            (SERVICE_NAME, "team"),
        ]);
        assert_eq!(own.endpoint.to_string(), "http://m:4318/here", "as it stands");
        assert_eq!(own.timeout, Duration::from_millis(500));
        assert_eq!(own.interval, Duration::from_secs(2));
        assert_eq!(own.service.as_deref(), Some("team"));
        let grpc = named(&[(ENDPOINT, "http://c:4317"), (PROTOCOL[1], "grpc")]);
        assert_eq!(grpc.protocol, Protocol::Grpc);
        assert_eq!(grpc.endpoint.path(), "/", "gRPC has its own paths");
        let both = [(PROTOCOL[0], "http/protobuf"), (PROTOCOL[1], "grpc")];
        let both = named(&[&[(ENDPOINT, "http://c:4318")][..], &both].concat());
        assert_eq!(both.protocol, Protocol::Http, "that of metrics comes first");
    }

    #[test]
    fn an_unusable_value_is_named_with_variable_and_what_is_allowed() {
        for (value, shown) in [
            ("collector:4317", "collector:4317"),
            ("localhost", "localhost"),
            ("ftp://c", "ftp://c"),
            ("http://", "http://"),
            ("/v1/metrics", "/..."),
            ("http://a b", "http://a b"),
        ] {
            let why = receiver(&[(ENDPOINT, value)]).unwrap_err();
            let named = format!("{ENDPOINT}: {shown} — ");
            assert!(why.contains(&named) && why.contains("http://HOST:4318"), "{why}");
        }
        let good = (ENDPOINT, "http://c:4318");
        for (name, value, allowed) in [
            (PROTOCOL[1], "http/json", "grpc or http/protobuf"),
            (INTERVAL, "0", "from 100 to"),
            (INTERVAL, "1s", "milliseconds"),
            (TIMEOUT[1], "-1", "milliseconds"),
            (TIMEOUT[0], "99999999999999999999", "milliseconds"),
        ] {
            let why = receiver(&[good, (name, value)]).unwrap_err();
            assert!(
                why.contains(name) && why.contains(value) && why.contains(allowed),
                "{why}"
            );
        }
    }

    #[test]
    fn messages_name_the_receiver_without_a_password_or_a_key() {
        let why = receiver(&[(ENDPOINT, "me:secret@collector:4317")]).unwrap_err();
        assert!(!why.contains("secret") && why.contains("collector:4317"), "{why}");
        for (value, shown) in [
            ("htps://c/secret", " htps://c/... "),
            ("c:4317/secret", " c:4317/... "),
            ("htps://c?key=secret", " htps://c?... "),
            ("htps://me:secret@c/secret", " ...@c/... "),
            ("htps://me:secret/secret@c", " ... "),
        ] {
            let why = receiver(&[(ENDPOINT, value)]).unwrap_err();
            assert!(!why.contains("secret") && why.contains(shown), "{why}");
        }
        let shown = named(&[(METRICS_ENDPOINT, "https://me:secret@c.example:4318/key?a=key")]).shown();
        assert_eq!(shown, "https://c.example:4318");
    }

    #[test]
    fn a_value_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt as _;
        let bytes = OsString::from_vec(vec![0xff]);
        let read = Receiver::from_variables(|name| (name == ENDPOINT).then(|| bytes.clone()));
        let why = read.unwrap_err().to_string();
        assert!(why.contains(ENDPOINT) && why.contains("Unicode"), "{why}");
    }
}
