//! The job files in `examples/` are valid jobs.

use std::path::Path;

#[test]
fn every_example_is_a_valid_job() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut seen = 0;
    let entries = [folder.clone(), folder.join("kubernetes")].map(|f| std::fs::read_dir(f).unwrap());
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            // The examples for clusters have other objects before the job.
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("\n---\n").last().unwrap();
            let job = varuna_api::parse_job(text);
            let job = job.unwrap_or_else(|e| panic!("{}:\n{e}", path.display()));
            // The text of every example is English, tokenized in bytes.
            assert!(
                job.model.transformer().unwrap().vocabulary_size >= 257,
                "{}",
                path.display()
            );
            seen += 1;
        }
    }
    assert!(seen >= 9, "{seen} examples");
}
