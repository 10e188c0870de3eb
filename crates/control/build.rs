//! Build script that generates the Rust types of the host's API without `protoc`. The option
//! `penstock --json` prints the JSON form of the generated types.

use std::error::Error;

const PROTO: &str = "penstock/host/v1/host.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/{PROTO}");
    let mut config = prost_build::Config::new();
    config.btree_map(["."]);
    config.message_attribute(".", "#[derive(serde::Serialize)]");
    for (fields, serde) in [
        ("counters", "serialize_with = \"super::by_name\""),
        ("PortStats.drops", "serialize_with = \"super::by_name\""),
        ("PortStats.tx_drops", "serialize_with = \"super::by_name\""),
        ("PortStats.delays", "serialize_with = \"super::waits_by_name\""),
        ("PortStats.queues", "skip_serializing_if = \"Vec::is_empty\""),
        ("FabricStatus.pairs", "skip_serializing_if = \"Option::is_none\""),
        ("HostStatus.fabric", "skip_serializing_if = \"Option::is_none\""),
        ("HostStatus.switch", "skip_serializing_if = \"Option::is_none\""),
        ("HostStatus.machine", "skip_serializing_if = \"Option::is_none\""),
        ("PortStatus.labels", "skip_serializing_if = \"std::collections::BTreeMap::is_empty\""),
        ("Tenant.labels", "skip_serializing_if = \"std::collections::BTreeMap::is_empty\""),
        ("Explanation.labels", "skip_serializing_if = \"std::collections::BTreeMap::is_empty\""),
        ("HostStatus.vcpu_dir", "skip"),
    ] {
        config.field_attribute(fields, format!("#[serde({serde})]"));
    }
    config.compile_fds(protox::compile([PROTO], ["proto"])?)?;
    Ok(())
}
