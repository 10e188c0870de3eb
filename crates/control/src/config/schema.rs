//! The JSON schema of the configuration file, for editors.

use super::HostConfig;

/// The schema of [`HostConfig`] (JSON Schema 2020-12), pretty-printed, with a final newline. The
/// committed copy is `docs/host.schema.json`.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::schema_for!(HostConfig);
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}
