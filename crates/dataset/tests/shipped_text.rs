//! The text that ships with the examples becomes the dataset that its README describes.

use std::path::Path;
use varuna_dataset::{Build, TokenDataset, Tokenizer, build, info};

#[test]
fn the_shipped_text_becomes_a_dataset_of_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/text/kjv.txt.gz");
    let output = folder.path().join("a/new/folder/kjv");
    let request = Build::new(vec![text], output.clone(), Tokenizer::Byte);
    let built = build(&request, &mut |_| ()).unwrap();
    assert_eq!(
        (built[0].text_bytes, built[0].sidecar.tokens),
        (4_137_850, 4_137_851)
    );
    let read = info(&output).unwrap();
    assert_eq!((read.tokens, read.documents, read.sequences), (4_137_851, 1, 1));
    let data = TokenDataset::open(&output, 128, 0.01, 1).unwrap();
    assert_eq!((data.training_len(), data.held_out_len()), (32_002, 324));
    let mut sample = [0; 129];
    for i in [0, 1, 32_001, 32_002, u64::MAX] {
        data.train(i, &mut sample).unwrap();
        assert!(sample.iter().all(|t| (10..127).contains(t)), "{sample:?}");
    }
}
