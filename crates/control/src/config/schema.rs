//! The JSON schemas of the configuration files, for editors.
//!
//! # Problem
//! An editor with the schema should mark each mistake in a configuration file that `penstock host
//! check` reports. The Rust types of the configuration contain only a part of the checks.
//!
//! # Approach
//! The schema's keys, types and ranges come from the Rust types of the configuration. The function
//! [`rules`] returns a JSON object that is merged into the schema. The returned object has patterns
//! for names and addresses, and lists keys that require or exclude other keys. A schema cannot
//! express all checks: only `host check` finds duplicates, and names that do not exist. The test
//! `tests/all/schema.rs` compares the schema with the check.

use penstock_dataplane::rtp::RTP_STREAMS_MAX;
use penstock_toml::schema::{ADDRESS, FileSchema, Tables, has, merge, need, written};
use penstock_vcpu::terms::{VcpuSection, VmTable};
use serde_json::{Value, json};

use super::attachment::Attachment;
use super::limits::{BINDINGS_MAX, FDB_MAX, PORTS_MAX, RULES_MAX, TENANTS_MAX};
use super::model::HostConfig;

/// Name and schema of each kind of file that this crate reads. The committed copy of a schema is
/// `docs/reference/NAME.schema.json`.
pub const SCHEMAS: [FileSchema; 2] = [("host", schema), ("vcpu", vcpu)];

/// Pattern of the names of hosts, tenants, ports, rules and VMs ([`penstock_units::check_name`]).
const NAME: &str = "^[A-Za-z0-9._-]{1,64}$";
/// Pattern of the names of servers and switches in a topology.
const NODE: &str = "^[^\\s]{1,63}$";
const ABSOLUTE: &str = "^/";
/// Pattern of the paths of unix sockets.
const SOCKET: &str = "^/.{0,106}$";
/// Pattern of an IPv4 or IPv6 address. The pattern does not check the groups of hexadecimal digits
/// in an IPv6 address.
const IP: &str = "^((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])$\
                  |^[0-9a-fA-F:]*:[0-9a-fA-F:.]*$";

/// Returns the schema of [`HostConfig`] (JSON Schema 2020-12) with a final newline. The file
/// `docs/reference/host.schema.json` is the committed copy of the host configuration's schema.
#[must_use]
pub fn schema() -> String {
    written(Value::from(schemars::schema_for!(HostConfig)), rules())
}

/// Returns the schema of a configuration file for `penstock vcpu run` alone.
fn vcpu() -> String {
    let mut tables = Tables::default();
    let properties = json!({ "vcpu": tables.one::<VcpuSection>(), "vm": tables.list::<VmTable>() });
    tables.file("Processors for virtual machines.", properties, &["vcpu"], of_vcpus())
}

fn rules() -> Value {
    let mut rules = json!({
        "properties": {
            "tenant": { "maxItems": TENANTS_MAX },
            "port": { "maxItems": PORTS_MAX },
            "rule": { "maxItems": RULES_MAX },
            "fdb": { "maxItems": FDB_MAX }
        },
        "dependentRequired": { "vm": ["vcpu"] },
        "not": has(&["fabric", "switch"]),
        "$defs": {
            "HostSection": host(),
            "WorkerSection": { "properties": {
                "cores": { "maxItems": 16, "uniqueItems": true },
                "control_cores": { "uniqueItems": true }
            } },
            "FabricSection": { "properties": {
                "name": { "pattern": NODE },
                "plan": { "pattern": ABSOLUTE },
                "controllers": {
                    "items": { "pattern": "^(https?://)?[^/]+:[0-9]{1,5}$" }, "uniqueItems": true
                }
            } },
            "SwitchSection": {
                "properties": {
                    "name": { "pattern": NODE },
                    "ports": { "uniqueItems": true },
                    "plan": { "pattern": ABSOLUTE }
                },
                "dependentRequired": { "listen": ["tls"], "tls": ["listen"] }
            },
            "ListenTls": { "properties": { "controllers": { "uniqueItems": true } } },
            "Tenant": { "properties": {
                "name": { "pattern": NAME },
                "send": { "type": "object", "properties": { "sharing": false } }
            } },
            "Port": port(),
            "Rule": {
                "properties": {
                    "name": { "pattern": NAME },
                    "port": { "pattern": NAME },
                    "tenant": { "pattern": NAME }
                },
                "not": has(&["port", "tenant"])
            },
            "Match": { "dependentRequired": { "src_port": ["proto"], "dst_port": ["proto"] } },
            "FdbStatic": {
                "properties": { "port": { "pattern": NAME }, "tenant": { "pattern": NAME } }
            },
            // The first byte of a station's address is even.
            "StationMac": {
                "pattern": "^[0-9a-fA-F][02468aceACE]([:-][0-9a-fA-F]{2}){5}$"
            }
        }
    });
    merge(&mut rules["$defs"], of_tables());
    merge(&mut rules["$defs"], of_attachments());
    merge(&mut rules, of_vcpus());
    rules
}

/// Additional schema rules for the tables of the vCPU scheduler.
fn of_vcpus() -> Value {
    let timed = |modes: &[&str]| need(&["vcpu_mode"], json!({ "vcpu_mode": { "enum": modes } }));
    let time = "^\\s*[0-9]+(\\.[0-9]{1,9})?\\s*(us|ms|s)\\s*$";
    json!({ "$defs": {
        "VcpuSection": { "properties": {
            "cpus": { "uniqueItems": true },
            "run_dir": { "pattern": ABSOLUTE }
        } },
        "VmTable": {
            "properties": {
                "name": { "pattern": NAME },
                "cgroup": { "pattern": ABSOLUTE },
                "process": { "pattern": "\\S" },
                "domain": { "pattern": "\\S" },
                "threads": { "pattern": "\\S" },
                "vcpu_mode": { "not": { "const": "driver" } },
                "deadline": { "pattern": time },
                "runtime": { "pattern": time }
            },
            "oneOf": [has(&["pid"]), has(&["cgroup"]), has(&["process"]), has(&["domain"])],
            "allOf": [
                {
                    "if": timed(&["periodic", "aperiodic", "reserved"]),
                    "then": has(&["deadline"]),
                    "else": { "properties": { "deadline": false } }
                },
                {
                    "if": timed(&["reserved"]),
                    "else": { "properties": { "runtime": false, "reclaim": false } }
                }
            ]
        }
    } })
}

/// Additional schema rules for inline tables.
fn of_tables() -> Value {
    json!({
        "OffloadsTable": {
            "if": need(&["csum"], json!({ "csum": { "const": false } })),
            "then": need(&["tso"], json!({ "tso": { "const": false } }))
        },
        "IngressPolicer": {
            "anyOf": [has(&["cir"]), has(&["pps"])],
            "dependentRequired": {
                "cbs": ["cir"], "ebs": ["cir"], "pir": ["cir"], "pbs": ["pir"], "burst": ["pps"]
            },
            "not": has(&["ebs", "pir"])
        },
        "Contract": {
            "anyOf": [has(&["rate"]), has(&["min_rate"]), has(&["min_pps"])],
            "not": { "anyOf": [has(&["rate", "min_rate"]), has(&["rate", "min_pps"])] }
        },
        "EgressPolicer": {
            "anyOf": [has(&["rate"]), has(&["pps"])],
            "dependentRequired": { "burst": ["rate"], "frames": ["pps"] }
        },
        "Shape": {
            "anyOf": [has(&["send"]), has(&["receive"])],
            "if": has(&["period_ms"]),
            "then": need(&["shaper"], json!({ "shaper": { "const": "token-bucket" } })),
            "not": {
                "anyOf": [has(&["window_us"]), has(&["interval_ms"])],
                "properties": { "shaper": { "const": "token-bucket" } },
                "required": ["shaper"]
            }
        }
    })
}

fn host() -> Value {
    let directive = "([A-Za-z0-9_:]+=)?(off|error|warn|info|debug|trace)";
    json!({
        "properties": {
            "name": { "pattern": NAME },
            "socket": { "pattern": SOCKET },
            "state_dir": { "pattern": ABSOLUTE },
            "metrics": { "pattern": ADDRESS },
            "log": { "pattern": format!("^\\s*{directive}\\s*(,\\s*{directive}\\s*)*$") }
        },
        // Other machines can reach the page only with `metrics_any`.
        "if": { "properties": { "metrics_any": { "const": false } } },
        "then": { "properties": {
            "metrics": { "type": "string", "pattern": "^(127\\.|\\[::1\\])" }
        } }
    })
}

/// Rules of attachments.
fn of_attachments() -> Value {
    let interface = json!({ "properties": {
        "interface": { "pattern": "^[^/:\\s]{1,15}$" },
        "netns": { "pattern": "^(/.*|[^/]+)$" }
    } });
    json!({
        "VhostUser": {
            "properties": { "socket": { "pattern": SOCKET } },
            "if": need(&["mode"], json!({ "mode": { "const": "client" } })),
            "then": { "properties": {
                "socket_mode": false, "socket_owner": false, "socket_group": false
            } }
        },
        "Tap": interface,
        "Packet": interface,
        "Xdp": interface
    })
}

fn port() -> Value {
    json!({
        "properties": {
            "name": { "pattern": NAME },
            "tenant": { "pattern": NAME },
            "trunk": { "type": "array", "minItems": 1 },
            "mac": { "maxItems": BINDINGS_MAX },
            "ip": { "maxItems": BINDINGS_MAX, "items": { "pattern": IP }, "uniqueItems": true },
            "receive": { "type": "object", "properties": { "sharing": false } },
            "rtp": { "maxItems": RTP_STREAMS_MAX }
        },
        "oneOf": Attachment::TYPES.map(|kind| has(&[kind])),
        "dependentRequired": { "native": ["trunk"], "receive": ["tenant"], "rtp": ["tenant"] },
        "not": has(&["vlan", "trunk"]),
        "allOf": [
            {
                "if": need(&["ingress_policy"], json!({
                    "ingress_policy": { "enum": ["bps", "pps"] }
                })),
                "then": { "anyOf": [has(&["police"]), has(&["contract"])] }
            },
            {
                "if": has(&["wfq"]),
                "then": need(&["egress"], json!({ "egress": { "const": "wfq" } }))
            },
            {
                "if": has(&["inbound"]),
                "then": {
                    "properties": { "tenant": false },
                    "anyOf": [has(&["link"]), { "properties": { "inbound": has(&["rate"]) } }]
                }
            }
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that each schema rule names a key of the schema; otherwise the rule has no effect.
    #[test]
    fn rules_are_about_keys_that_are_there() {
        let schema = Value::from(schemars::schema_for!(HostConfig));
        let keys = |table: &Value| -> Vec<String> {
            let keys = table["properties"].as_object();
            keys.map(|keys| keys.keys().cloned().collect()).unwrap_or_default()
        };
        let there = |of: &Value, rules: &Value, name: &str| {
            for key in keys(rules) {
                assert!(keys(of).contains(&key), "{name}: {key}");
            }
        };
        let rules = rules();
        there(&schema, &rules, "the file");
        for (name, rules) in rules["$defs"].as_object().unwrap() {
            assert!(schema["$defs"].get(name).is_some(), "{name}");
            there(&schema["$defs"][name], rules, name);
        }
    }
}
