//! Explains why the driver cannot use a switch's tables or a port.

/// Reason why the driver cannot use the switch's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// The switch has no port with this name.
    NoPort(String),
    /// Another configuration uses a field that the driver needs. The variant contains the entry's
    /// key, the field, and the field's value.
    Foreign(String, &'static str, String),
    /// An entry of another configuration, such as a range of queues, includes a queue that the
    /// driver configures. The variant contains the keys of the foreign entry and of the driver's
    /// entry.
    Range(String, String),
    /// A field refers to a map that is missing or invalid. The variant contains the entry's key,
    /// the field, and the map's name.
    NoMap(String, &'static str, String),
    /// Other traffic of the port with this name uses a queue, class or code point.
    Conflict(String, Conflict),
    /// The device has several ASICs or virtual output queues, for which SONiC uses other keys or
    /// other databases. The variant contains the field of `DEVICE_METADATA` and its value.
    Platform(&'static str, String),
    /// A value in the tables is invalid. The variant contains the value's location and the problem.
    Rubbish(String, String),
}

/// Use of a port by other traffic that conflicts with tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Priority flow control is on for a queue of tenants. The variant contains the PFC priority,
    /// and the queues without flow control.
    Lossless(u8, Vec<u8>),
    /// In the port's other maps, code point 0 is not in the queue that tenants share, but in the
    /// queue with this number.
    Shared(u8),
    /// A tenant's code point or queue already belongs to other traffic. The variant contains the
    /// code point and the queue of the other traffic.
    CodePoint(u8, u8),
    /// The port's map from traffic class to queue has this name, and differs from the maps of other
    /// ports.
    Differs(String),
    /// With this port, tenants would have only these traffic classes.
    Classes(Vec<u8>),
}

/// Parts of the error `WHAT is not supported: LIMIT; REMEDY`.
pub(super) struct Explanation {
    pub(super) what: String,
    pub(super) limit: String,
    pub(super) remedy: String,
}

/// Quotes a word for a shell. Without quotes, a shell would read `|` in a key as a pipe, and `[` as
/// a pattern.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn parts(what: String, limit: String, remedy: impl Into<String>) -> Explanation {
    Explanation { what, limit, remedy: remedy.into() }
}

impl Unfit {
    /// Returns the parts of the error's text.
    pub(super) fn explain(&self) -> Explanation {
        let command = |verb: &str, key: &str, field: &str| {
            format!("sonic-db-cli CONFIG_DB {verb} {} {field}", quoted(key))
        };
        match self {
            Self::NoPort(port) => {
                let limit = "the switch's CONFIG_DB has no such port".to_owned();
                parts(format!("port {port}"), limit, "name a port of the switch")
            }
            Self::Foreign(key, field, other) => {
                let limit = format!("{key} has {field} {other}, which Penstock did not set");
                let or = match *field {
                    "tc_to_dscp_map" | "dot1p_to_tc_map" => "leave the port out of the topology",
                    _ => "write `tenant_queues` for the switch, or leave the port out",
                };
                let command = command("HDEL", key, field);
                let remedy = format!("remove the field with `{command}`, or {or}");
                parts(format!("changing {key}"), limit, remedy)
            }
            Self::Range(key, entry) => {
                let limit = format!("{key} is one entry for several queues");
                let remedy = "replace the entry by one entry for each queue, or leave the port out \
                              of the topology";
                parts(format!("changing {entry}"), limit, remedy)
            }
            Self::NoMap(key, field, name) => {
                let limit = format!("{key} has {field} {name}, which is missing or not valid");
                let command = command("HSET", key, field);
                let remedy = format!("set an existing map with `{command} MAP`");
                parts(format!("changing {key}"), limit, remedy)
            }
            Self::Conflict(port, conflict) => conflict.explain(port),
            Self::Platform(field, value) => {
                let limit = "a device with several ASICs or virtual output queues has other keys \
                             and databases for its queues";
                let remedy = "leave the switch out of the fabric";
                parts(format!("{field} {value}"), limit.to_owned(), remedy)
            }
            Self::Rubbish(what, problem) => {
                parts(what.clone(), problem.clone(), "correct the value on the switch")
            }
        }
    }
}

impl Conflict {
    fn explain(&self, port: &str) -> Explanation {
        let what = format!("port {port}");
        match self {
            Self::Lossless(priority, free) => {
                let limit = format!(
                    "priority flow control of {priority} is on, so a tenant in queue {priority} \
                     would stop the links of other tenants"
                );
                let off = format!("config interface pfc priority {port} {priority} off");
                let remedy = format!(
                    "choose `tenant_queues` of the switch from {free:?}, or turn flow control off \
                     with `{off}`"
                );
                parts(what, limit, remedy)
            }
            Self::Shared(queue) => {
                let limit = format!(
                    "code point 0 is in queue {queue}, which is not the queue that tenants share"
                );
                parts(what, limit, format!("begin `tenant_queues` of the switch with {queue}"))
            }
            Self::CodePoint(dscp, queue) => {
                let limit = format!(
                    "code point {dscp} of other traffic is in queue {queue}, and this code point \
                     or queue would belong to a tenant"
                );
                let remedy = format!(
                    "leave {queue} out of `tenant_queues` of the switch, and add {dscp} to \
                     `reserved_code_points` in the fabric's file"
                );
                parts(what, limit, remedy)
            }
            Self::Differs(map) => {
                let limit = format!("its map {map} differs from the maps of the ports before it");
                parts(what, limit, "give all ports one map, or leave the port out of the topology")
            }
            Self::Classes(free) => {
                let limit = format!("other traffic leaves only the classes {free:?} to tenants");
                let remedy = "raise `reserved_queues` in the fabric's file, or leave the port out \
                              of the topology";
                parts(what, limit, remedy)
            }
        }
    }
}
