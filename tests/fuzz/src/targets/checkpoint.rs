//! Checkpoints: manifests, shards, the names of objects in a store with the claims of owners, and Hugging Face folders.

use super::{ID, LITTLE, Seeds, join, json, take_part, text};
use crate::{Form, Target};
use futures::executor::block_on;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, PutPayload};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use varuna_checkpoint::{
    Claim, DataDigest, Facts, Location, Manifest, Retention, Shard, ShardEntry, ShardTensor, Store,
    folder_name, huggingface, prunable, unit_name,
};
use varuna_model::{Family, Transformer, gpt2};
use varuna_plan::{Layout, StateId, Unit};

pub(super) const MANIFEST: Target = Target {
    name: "manifest",
    what: "manifests of checkpoints",
    form: Form::Json,
    words: &[
        "segment-000",
        "segment-000.safetensors",
        "tied",
        "0000000000000007",
    ],
    memory: LITTLE,
    seeds: manifest_seeds,
    run: run_manifest,
};

pub(super) const SHARD: Target = Target {
    name: "shard",
    what: "shards of checkpoints (safetensors), whole and by their header",
    form: Form::Safetensors,
    words: &[
        "\"__metadata__\":",
        "\"dtype\":\"F32\"",
        "\"dtype\":\"F4\"",
        "\"data_offsets\":[0,0]",
        "\"shape\":[0]",
        "\\\"w\\\",",
        "\\\"order\\\":[",
        "parameter/w",
        "exp_avg/w",
        "18446744073709551615",
        "4611686018427387904",
    ],
    memory: LITTLE,
    seeds: shard_seeds,
    run: run_shard,
};

pub(super) const LISTING: Target = Target {
    name: "checkpoint-listing",
    what: "names of objects at a checkpoint location, and the claims of its owners",
    form: Form::Text,
    words: &[
        "owner/",
        "00000001.json",
        ".json",
        "{\"run\":\"a\",\"machine\":\"\",\"process\":1,\"started\":2}",
        "step-",
        "manifest.json",
        "refused.json",
        "doubted-segment-000.json",
        "-g",
        "/",
        "\n",
        "%2F",
        "..",
    ],
    memory: LITTLE,
    seeds: listing_seeds,
    run: run_listing,
};

pub(super) const HUGGING_FACE: Target = Target {
    name: "huggingface",
    what: "config.json and model.safetensors of a Hugging Face folder",
    form: Form::Parts(2),
    words: &[
        "\"n_layer\":",
        "\"n_embd\":",
        "4294967295",
        "2147483647",
        "\"dtype\":\"F32\"",
        "\"shape\":[",
        "\"data_offsets\":[",
        "transformer.h.0.attn.c_attn.weight",
        "\"vocab_size\":",
    ],
    memory: LITTLE,
    seeds: huggingface_seeds,
    run: run_huggingface,
};

const UNIT: &str = "segment-000";
const LAYOUT: Layout = Layout::new(1, false);

fn facts() -> Facts {
    Facts {
        job: "demo".into(),
        model: serde_json::json!({"layers": 1, "dropout": 0.0}),
        training_hash: "ab".repeat(32),
        seed: 1,
        global_batch_size: 16,
        data_fingerprint: "cd".repeat(32),
        moments: varuna_plan::Moments::Adam,
    }
}

fn manifest(layout: Layout) -> Manifest {
    let shard = |unit: Unit| {
        let unit = unit_name(layout, unit);
        ShardEntry {
            file: format!("{unit}.safetensors"),
            unit,
            bytes: 1000,
            digest: DataDigest::Blake3("0".repeat(64)),
        }
    };
    Manifest::new(ID, layout, facts(), layout.all_units().map(shard).collect())
}

fn manifest_seeds() -> Seeds {
    let tied = Layout::new(3, true);
    vec![
        ("one-unit", json(&manifest(LAYOUT))),
        ("tied", json(&manifest(tied))),
    ]
}

fn run_manifest(input: &[u8]) -> Result<String, String> {
    let manifest = Manifest::decode(ID, input).map_err(|e| e.to_string())?;
    let written = json(&manifest);
    let read = Manifest::decode(ID, &written).expect("a manifest that was written can be read");
    assert_eq!(read, manifest);
    assert_eq!(manifest.shards.len(), manifest.layout.units());
    let fits = manifest.suits(&facts(), LAYOUT).is_ok();
    Ok(format!("{fits} {}", manifest.layout.tied))
}

fn shard(shapes: &[(&str, &[usize])]) -> Shard {
    let tensor = |(name, shape): &(&str, &[usize])| ShardTensor {
        name: (*name).to_owned(),
        shape: shape.to_vec(),
        whole: None,
    };
    let elements = shapes
        .iter()
        .map(|(_, shape)| shape.iter().product::<usize>())
        .sum();
    Shard {
        id: ID,
        unit: UNIT.into(),
        adam_steps: 5,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: varuna_plan::Moments::Adam,
        tensors: shapes.iter().map(tensor).collect(),
        data: [1.0, 0.5, 0.25].map(|value| vec![value; elements]).concat(),
    }
}

fn shard_seeds() -> Seeds {
    let encoded = |shapes| shard(shapes).encode().expect("a sound shard").to_vec();
    let mut of_sgd = shard(&[("w", &[2, 3])]);
    of_sgd.moments = varuna_plan::Moments::Momentum;
    of_sgd.data.truncate(2 * 6);
    vec![
        ("of-sgd", of_sgd.encode().expect("a sound shard").to_vec()),
        ("one-tensor", encoded(&[("w", &[2, 3])])),
        ("two-tensors", encoded(&[("w", &[2, 3]), ("b", &[3])])),
        ("no-elements", encoded(&[("w", &[0, 3])])),
    ]
}

/// The input with the right digest of its data in the header, if it has one. Otherwise each mutation of the data would only test the
/// digest.
fn with_digest(input: &[u8]) -> Option<Vec<u8>> {
    const BLAKE3: &[u8] = br#"blake3\":\""#;
    const SHA256: &[u8] = br#"sha256\":\""#;
    let length = u64::from_le_bytes(*input.split_at_checked(8)?.0.as_array()?);
    let start = usize::try_from(length).ok()?.checked_add(8)?;
    let (header, data) = input.split_at_checked(start)?;
    let after = |name: &[u8]| Some(header.windows(name.len()).position(|w| w == name)? + name.len());
    let (at, digest) = match after(BLAKE3) {
        Some(at) => (at, blake3::hash(data).to_hex().to_string()),
        None => (after(SHA256)?, format!("{:x}", Sha256::digest(data))),
    };
    let mut fixed = input.to_vec();
    fixed.get_mut(at..at + 64)?.copy_from_slice(digest.as_bytes());
    Some(fixed)
}

fn run_shard(input: &[u8]) -> Result<String, String> {
    let fixed = with_digest(input);
    let file = fixed.as_deref().unwrap_or(input);
    let decoded = Shard::decode(ID, UNIT, file);
    let inner = Arc::new(InMemory::new());
    let path = Path::from(format!("demo/{}/{UNIT}.safetensors", folder_name(ID)));
    let put = inner.put(&path, PutPayload::from(file.to_vec()));
    block_on(put).expect("memory takes everything");
    let store = Store::new(Location::over(inner), LAYOUT, facts());
    // The manifest is made from the header only.
    let complete = block_on(store.complete(ID));
    let shard = match decoded {
        Ok(shard) => shard,
        Err(error) => return Err(format!("{error} {}", complete.is_ok())),
    };
    assert_eq!(complete.ok(), Some(true), "a sound shard makes a checkpoint");
    let manifest = block_on(store.location().manifest(ID)).expect("the manifest was written");
    let loaded = block_on(store.location().load(&manifest, UNIT, || {})).expect("it is sound");
    // The bytes are compared, because a tensor may have values that are not equal to themselves.
    let bytes = |shard: &Shard| shard.encode().expect("a shard that was read can be written");
    assert_eq!(bytes(&loaded), bytes(&shard));
    let again = Shard::decode(ID, UNIT, &bytes(&shard)).expect("a shard that was written can be read");
    assert_eq!(bytes(&again), bytes(&shard));
    Ok(format!("{} tensors", shard.tensors.len()))
}

fn listing_seeds() -> Seeds {
    let folder = folder_name(ID);
    let claim = r#"{"run":"a","machine":"m","process":1,"started":2}"#;
    let whole = format!(
        "{folder}/manifest.json\n{folder}/{UNIT}.safetensors 0123\nowner/00000001.json {claim}\nowner/clock\n"
    );
    let refused = format!("{folder}/manifest.json\n{folder}/refused.json {{}}\nother/file\n");
    let given_up =
        format!("{folder}/manifest.json\n{folder}/refused.json {{\"why\":\"a\",\"givenUp\":true}}\n");
    let doubted =
        format!("{folder}/manifest.json\n{folder}/doubted-{UNIT}.json {{\"why\":\"a\",\"by\":\"b\"}}\n");
    vec![
        ("owned", whole.into_bytes()),
        ("refused", refused.into_bytes()),
        ("given-up", given_up.into_bytes()),
        ("doubted", doubted.into_bytes()),
    ]
}

/// Each line is an object: its name, and after a space its content.
fn run_listing(input: &[u8]) -> Result<String, String> {
    let inner = Arc::new(InMemory::new());
    for line in text(input)?.lines() {
        let (name, content) = line.split_once(' ').unwrap_or((line, ""));
        let Ok(path) = Path::parse(name) else { continue };
        let put = inner.put(&path, PutPayload::from(content.as_bytes().to_vec()));
        block_on(put).expect("memory takes everything");
    }
    let location = Location::over(inner);
    let listed = block_on(location.list()).map_err(|e| e.to_string())?;
    for marked in listed.iter().filter(|l| l.marked_damaged) {
        let refusal = block_on(location.refusal(marked.id)).map_err(|e| e.to_string())?;
        assert!(refusal.is_some(), "a mark has a meaning whatever it says");
    }
    for (id, unit) in listed
        .iter()
        .flat_map(|l| l.doubted().map(move |unit| (l.id, unit)))
    {
        // None for a name that no unit has, and that the store writes in another way.
        block_on(location.doubt_about(id, unit)).map_err(|e| e.to_string())?;
    }
    let newest = listed.iter().filter(|l| l.is_usable()).map(|l| l.id).max();
    let pruned = prunable(&listed, &Retention::newest(1));
    assert!(newest.is_none_or(|id| !pruned.checkpoints.contains(&id)));
    let claim = Claim {
        run: "b".into(),
        machine: String::new(),
        process: 1,
        started: 2,
    };
    let claimed = block_on(location.claim(claim, |owner| owner.process == 1));
    let owner = claimed.map_err(|e| e.to_string())?;
    let standing = block_on(owner.renew()).map_err(|e| e.to_string())?;
    Ok(format!("{standing:?} {}", listed.len()))
}

fn small_model() -> Transformer {
    Transformer {
        layers: 1,
        hidden_size: 2,
        heads: 1,
        sequence_length: 2,
        vocabulary_size: 3,
        ..gpt2::SMALL
    }
}

fn huggingface_seeds() -> Seeds {
    let seed = |model: &Transformer| {
        let shards: Vec<(Unit, Shard)> = model.layout().all_units().map(|u| (u, zeros(model, u))).collect();
        let config = Family::Gpt2.config(model, 2);
        let file = huggingface::export(model, &shards).expect("a whole model");
        join(&[&json(&config), &file])
    };
    let untied = Transformer {
        tied_head: false,
        ..small_model()
    };
    vec![("tied", seed(&small_model())), ("untied", seed(&untied))]
}

fn zeros(model: &Transformer, unit: Unit) -> Shard {
    let parameters = model.parameters(unit);
    let elements: usize = parameters.iter().map(|p| p.elements()).sum();
    let tensors = parameters.into_iter().map(|p| ShardTensor {
        name: p.name.into_owned(),
        shape: p.shape,
        whole: None,
    });
    Shard {
        id: StateId::INITIAL,
        unit: unit_name(model.layout(), unit),
        adam_steps: 0,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: varuna_plan::Moments::Adam,
        tensors: tensors.collect(),
        data: vec![0.0; 3 * elements],
    }
}

fn run_huggingface(mut input: &[u8]) -> Result<String, String> {
    let config = serde_json::from_slice(take_part(&mut input)).map_err(|e| e.to_string())?;
    let (family, model) = Family::read(&config).map_err(|e| e.to_string())?;
    let written = family.config(&model, 0);
    assert_eq!(Family::read(&written), Ok((family, model.clone())));
    let layout = model.layout();
    assert_eq!(layout.all_units().count(), layout.units());
    assert!(
        model.parameter_count().checked_mul(12).is_some(),
        "its state can be counted in bytes"
    );
    let shards = huggingface::import(&model, ID, &[input]).map_err(|e| e.to_string())?;
    let file = huggingface::export(&model, &shards).expect("what was imported can be exported");
    let again = huggingface::import(&model, ID, &[&file]).expect("what was exported can be imported");
    assert_eq!(huggingface::export(&model, &again).ok(), Some(file));
    Ok(format!("{} units", shards.len()))
}
