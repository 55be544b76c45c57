//! A real Prometheus that scrapes the operator and a job's coordinator, as the chart's monitors configure it.

use anyhow::{Context as _, Result, ensure};
use kube::{Client, Config};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use varuna_cluster_tests::{Cluster, eventually, root};

/// The folder of the programs, if they were built.
pub(crate) fn programs() -> Option<PathBuf> {
    let folder = root().join(".cache/prometheus");
    folder.join("prometheus").exists().then_some(folder)
}

/// A process that ends when this is dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server, and the proxy through which it reaches pods.
pub(crate) struct Prometheus {
    _server: Ends,
    _proxy: Ends,
    client: Client,
}

impl Prometheus {
    /// Starts the server with the chart's rules. It scrapes these pods (namespace and name) every second, and keeps its data in `folder`.
    ///
    /// # Errors
    /// Prometheus does not start, or `promtool` finds an error in the rules.
    pub(crate) async fn start(
        cluster: &Cluster,
        folder: &Path,
        pods: &[(String, String)],
    ) -> Result<Prometheus> {
        let programs = programs().context("Prometheus is missing: run scripts/setup-prometheus.sh")?;
        std::fs::create_dir_all(folder)?;
        let (proxy, address) = proxy(cluster)?;
        let scrapes: Vec<Value> = pods
            .iter()
            .map(|(namespace, pod)| {
                json!({
                    "job_name": pod, "honor_labels": true,
                    "metrics_path": format!("/api/v1/namespaces/{namespace}/pods/{pod}:8081/proxy/metrics"),
                    "static_configs": [{ "targets": [address] }],
                })
            })
            .collect();
        let configuration = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [root().join("charts/varuna/rules.yaml")],
            "scrape_configs": scrapes,
        });
        // Each JSON document is also YAML.
        let file = folder.join("prometheus.yaml");
        std::fs::write(&file, configuration.to_string())?;
        let checked = Command::new(programs.join("promtool"))
            .args(["check", "config"])
            .arg(&file)
            .output()?;
        let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
        ensure!(checked.status.success(), "promtool: {said}");
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = File::create(folder.join("log"))?;
        let server = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let client = Client::try_from(Config::new(format!("http://127.0.0.1:{port}").parse()?))?;
        let prometheus = Prometheus {
            _server: Ends(server),
            _proxy: proxy,
            client,
        };
        eventually("Prometheus is ready", || prometheus.get("/-/ready".to_owned())).await?;
        Ok(prometheus)
    }

    async fn get(&self, path: String) -> Result<String> {
        Ok(self
            .client
            .request_text(http::Request::get(path).body(vec![])?)
            .await?)
    }

    /// The present result of an expression.
    ///
    /// # Errors
    /// Prometheus refuses it.
    pub(crate) async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let path = format!("/api/v1/query?query={}", encoded(expression));
        let answer: Value = serde_json::from_str(&self.get(path).await?)?;
        let result = answer["data"]["result"].as_array().cloned();
        result.with_context(|| format!("{expression}: {answer}"))
    }

    /// The names of the alerts that it has evaluated without an error.
    ///
    /// # Errors
    /// Prometheus does not answer.
    pub(crate) async fn healthy_alerts(&self) -> Result<Vec<String>> {
        let answer: Value = serde_json::from_str(&self.get("/api/v1/rules".to_owned()).await?)?;
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups
            .iter()
            .flat_map(|g| g["rules"].as_array().cloned().unwrap_or_default());
        Ok(rules
            .filter(|rule| rule["health"] == "ok")
            .filter_map(|rule| rule["name"].as_str().map(str::to_owned))
            .collect())
    }
}

/// Starts `kubectl proxy`; returns the process and its address.
fn proxy(cluster: &Cluster) -> Result<(Ends, String)> {
    let mut process = Ends(
        cluster
            .kubectl_command()
            .args(["proxy", "--port=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let mut line = String::new();
    let output = process.0.stdout.take().context("a pipe")?;
    BufReader::new(output).read_line(&mut line)?;
    let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    ensure!(address.contains(':'), "kubectl proxy says {line:?}");
    Ok((process, address))
}

/// An expression as part of a URL.
fn encoded(text: &str) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.~".contains(b);
    text.bytes()
        .map(|b| {
            if plain(&b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
