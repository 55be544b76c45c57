//! Availability traces, profiles, and tables of links.

use super::{LITTLE, MORE, Seeds, round_trip, text};
use crate::{Form, Target};
use varuna_model::{Transformer, gpt2};
use varuna_plan::profile::Profile;
use varuna_plan::{Costs, Device};
use varuna_sim::replay::Trace;

pub(super) const TRACE: Target = Target {
    name: "trace",
    what: "availability traces (CSV)",
    form: Form::Text,
    words: &[
        "time_s,nodes\n",
        "time_s,event,node\n",
        "add",
        "remove",
        ",",
        "\n",
        "\r\n",
        "\"",
        "1e9",
    ],
    // A line of eight bytes may describe 100,000 nodes.
    memory: 256 << 20,
    seeds: trace_seeds,
    run: run_trace,
};

pub(super) const PROFILE: Target = Target {
    name: "profile",
    what: "profiles (JSON)",
    form: Form::Json,
    words: &[
        "block",
        "attention",
        "mlp",
        "overlapped",
        "measured",
        "estimated",
        "rows",
        "kind",
        "rings",
    ],
    memory: LITTLE,
    seeds: profile_seeds,
    run: run_profile,
};

pub(super) const LINKS: Target = Target {
    name: "links",
    what: "tables of links (CSV) beside a profile",
    form: Form::Text,
    words: &[
        "bytes,us\n",
        ",",
        "\n",
        "\r",
        "\"",
        "1e308",
        "1125899906842624",
        "18446744073709551615",
    ],
    memory: MORE,
    seeds: links_seeds,
    run: run_links,
};

fn file(path: &str) -> Vec<u8> {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("a file of the repository")
}

fn trace_seeds() -> Seeds {
    let published = file("bench/data/traces/aws-v100-16node.csv");
    let lines = String::from_utf8_lossy(&published);
    let first: String = lines.split_inclusive('\n').take(60).collect();
    let named = "time_s,event,node\n0.0,add,a\n0,add,b\n1.5,remove,a\n1.5,add,c\n";
    vec![
        ("published", first.into_bytes()),
        ("named", named.as_bytes().to_vec()),
        ("counted", b"time_s,nodes\n0,4\n10,1\n20,3\n".to_vec()),
    ]
}

fn run_trace(input: &[u8]) -> Result<String, String> {
    let text = text(input)?;
    let trace = Trace::read("t.csv", text, 7).map_err(|e| e.to_string())?;
    assert!(trace.start_ns() < trace.end_ns());
    assert!(trace.counts().iter().all(|(_, nodes)| *nodes <= trace.most()));
    assert!(trace.moments.is_sorted_by(|a, b| a.at_ns < b.at_ns));
    Ok(format!("{} at most", trace.most()))
}

fn estimate() -> Profile {
    let model = Transformer {
        layers: 1,
        hidden_size: 64,
        heads: 2,
        sequence_length: 32,
        vocabulary_size: 100,
        ..gpt2::SMALL
    };
    let costs = Costs::estimate(&model.spec(), Device::CPU_CORE);
    Profile::of_costs(&costs, "gpt".into(), "cpu-core".into())
}

fn profile_seeds() -> Seeds {
    vec![
        ("estimate", super::json(&estimate())),
        (
            "published",
            file("bench/data/measured/gpt-1.5b-v100-profile.json"),
        ),
    ]
}

fn use_profile(profile: &Profile) -> String {
    let costs = profile.costs();
    let whole = costs.layout().whole();
    let ms = costs.forward_ms(whole, 4);
    assert!(ms >= 0.0, "{ms} ms");
    round_trip(profile);
    let written = serde_json::to_string(profile).expect("what was read can be written");
    assert_eq!(Profile::read("p.json", &written, None).as_ref(), Ok(profile));
    format!("{} {}", profile.rings.is_empty(), profile.host.is_some())
}

fn run_profile(input: &[u8]) -> Result<String, String> {
    let profile = Profile::read("p.json", text(input)?, None).map_err(|e| e.to_string())?;
    Ok(use_profile(&profile))
}

fn links_seeds() -> Seeds {
    vec![
        ("published", file("bench/data/measured/p2p-10gbps.csv")),
        ("two", b"bytes,us\n4,80\n1048576,900.5\n".to_vec()),
    ]
}

fn run_links(input: &[u8]) -> Result<String, String> {
    let written = serde_json::to_string(&estimate()).expect("an estimate can be written");
    let links = Some(("links.csv", text(input)?));
    let profile = Profile::read("p.json", &written, links).map_err(|e| e.to_string())?;
    Ok(use_profile(&profile))
}
