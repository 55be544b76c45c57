use super::*;
use varuna_model::{Transformer, gpt2};

fn estimate() -> Profile {
    let gpt = Transformer {
        layers: 3,
        hidden_size: 64,
        sequence_length: 32,
        vocabulary_size: 100,
        ..gpt2::SMALL
    };
    Profile::of_costs(
        &Costs::estimate(&gpt.spec(), Device::CPU_CORE),
        "gpt".into(),
        "cpu-core".into(),
    )
}

fn json(profile: &Profile) -> Value {
    serde_json::to_value(profile).unwrap()
}

fn refused(change: impl FnOnce(&mut Value)) -> String {
    let mut value = json(&estimate());
    change(&mut value);
    Profile::read("p.json", &value.to_string(), None)
        .unwrap_err()
        .to_string()
}

#[test]
fn a_written_profile_is_read_back_and_means_the_same_costs() {
    let profile = estimate();
    let read = Profile::read("p.json", &json(&profile).to_string(), None).unwrap();
    assert_eq!(read, profile);
    let (gpt, costs) = (profile.costs(), read.costs());
    assert_eq!(gpt, costs);
    let whole = costs.layout().whole();
    assert!(
        (costs.forward_ms(whole, 4) - profile.segments.iter().map(|s| s.rows[1].forward_ms).sum::<f64>())
            .abs()
            < 1e-9
    );
}

#[test]
fn what_is_wrong_is_named_with_file_and_field() {
    let cases: [(&str, Value); 7] = [
        ("/segments/2/rows/0/forwardMs", (-1.0).into()),
        ("/segments/2/rows/0/backwardMs", "fast".into()),
        ("/segments/1/parameters", (-3).into()),
        ("/segments", json!([])),
        ("/version", 2.into()),
        ("/links/1/ms", 0.into()),
        ("/runtime", "quick".into()),
    ];
    for (pointer, value) in cases {
        let why = refused(|v| *v.pointer_mut(pointer).unwrap() = value);
        let field = pointer.rsplit('/').next().unwrap();
        assert!(
            why.starts_with("p.json: ") && why.contains(field),
            "{pointer}: {why}"
        );
    }
    let why = refused(|v| *v.pointer_mut("/segments/2/rows/0/forwardMs").unwrap() = (-1.0).into());
    assert_eq!(
        why,
        "p.json: segments[2].rows[0].forwardMs is -1.0, allowed is a time of at least 0"
    );
    let why = refused(|v| drop(v["segments"][0].as_object_mut().unwrap().remove("savedBytes")));
    assert_eq!(
        why,
        "p.json: segments[0].savedBytes is missing, allowed is a value"
    );
    let why = refused(|v| v["segments"][0]["speed"] = 1.into());
    assert!(
        why.starts_with("p.json: segments[0].speed is 1, allowed is nothing; known are name"),
        "{why}"
    );
}

#[test]
fn amounts_of_all_segments_together_have_a_limit() {
    let half = (1_u64 << 49) + 1;
    let why = refused(|v| {
        v["segments"][1]["savedBytes"] = half.into();
        v["segments"][2]["savedBytes"] = half.into();
    });
    assert!(
        why.starts_with("p.json: the sum of all savedBytes of segments is 11258999"),
        "{why}"
    );
}

#[test]
fn nan_is_no_json_and_its_place_is_named() {
    let why = Profile::read("p.json", "{\"version\": NaN}", None)
        .unwrap_err()
        .to_string();
    assert!(why.starts_with("p.json: line 1, column 1"), "{why}");
}

#[test]
fn link_table_replaces_links_and_is_checked() {
    let profile = json(&estimate()).to_string();
    let links = Some(("l.csv", "bytes,us\n1,50\n1000000,1000\n"));
    let read = Profile::read("p.json", &profile, links).unwrap();
    assert!((read.costs().device.bytes_per_s / 1e9 - 1.0).abs() < 1e-9);
    for (text, place) in [
        ("", "line 1"),
        ("bytes,us\n", "line 2"),
        ("bytes,us\n4,1\n4,2\n", "line 3, bytes"),
        ("bytes,us\n4,NaN\n", "line 2, us"),
        ("bytes,us\n4\n", "line 2, us"),
    ] {
        let why = Profile::read("p.json", &profile, Some(("l.csv", text)))
            .unwrap_err()
            .to_string();
        assert!(why.starts_with(&format!("l.csv: {place} is")), "{text:?}: {why}");
    }
}
