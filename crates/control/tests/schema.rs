//! The committed files are those that the code makes and reads.

use std::path::{Path, PathBuf};

use penstock_control::config::{parse, schema};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_schema_is_fresh() {
    let path = root().join("docs/host.schema.json");
    let made = schema();
    if std::env::var_os("PENSTOCK_WRITE_SCHEMA").is_some() {
        std::fs::write(&path, &made).expect("docs can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let remedy = "run PENSTOCK_WRITE_SCHEMA=1 cargo test -p penstock-control --test schema";
    assert!(committed == made, "docs/host.schema.json is stale: {remedy}");
}

#[test]
fn every_example_is_right() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).expect("readable");
            // A datacenter and its tenants are looked at in `fabric_files.rs`.
            if !text.contains("[host]") {
                continue;
            }
            if let Err(errors) = parse(&text, &path.display().to_string()) {
                panic!("{errors}");
            }
            count += 1;
        }
    }
    assert!(count >= 2);
}

#[test]
fn every_key_is_documented() {
    let documentation = std::fs::read_to_string(root().join("docs/configuration.md"))
        .expect("docs/configuration.md");
    let schema: serde_json::Value = serde_json::from_str(&schema()).expect("a schema");
    let mut tables = vec![&schema];
    tables.extend(schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values()));
    let keys = tables.iter().filter_map(|table| table["properties"].as_object());
    let missing: Vec<&String> = keys
        .flat_map(|keys| keys.keys())
        .filter(|key| {
            !documentation.contains(&format!("`{key}`"))
                && !documentation.contains(&format!("[{key}]"))
        })
        .collect();
    assert!(missing.is_empty(), "not in docs/configuration.md: {missing:?}");
}
