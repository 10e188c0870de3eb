//! Reads the tables `[[tenant]]`, which contain the requests of tenants.

use std::collections::HashMap;

use penstock_fabric::hose::{Hose, HoseError, VmClass};
use penstock_fabric::tenant_placement::{Affinity, Request, Spread};
use penstock_fabric::topology::Topology;
use penstock_toml::BitsPerSecond;
use penstock_toml::schema::{Tables, need};
use penstock_toml::{Object, Report, list};
use penstock_units::{NAME_REMEDY, check_name};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toml_edit::Table;

pub(super) const SECTIONS: [&str; 1] = ["tenant"];

/// Kind of fault domain: server, rack or pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// One server.
    #[default]
    Server,
    /// All servers below a switch of the lowest layer.
    Rack,
    /// All servers below a switch of the second layer.
    Pod,
}

impl Layer {
    /// Returns the layer's number: 0 for servers, 1 for racks and 2 for pods.
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }
}

/// Request of a tenant as the file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantWish {
    pub name: String,
    /// Requested VMs, guarantees and limits on placement. In this request, [`Affinity::near`] and
    /// [`Affinity::apart`] are empty, because [`TenantWish`] has fields with the same names.
    pub request: Request,
    /// Earlier tenants with which this tenant must share a fault domain. Each pair contains a
    /// tenant's index and the layer of the fault domain (0 server, 1 rack, 2 pod). Indices count
    /// the known tenants first, and then the tenants of the parsed file.
    pub near: Vec<(usize, usize)>,
    /// Earlier tenants with which this tenant must not share a fault domain. Each pair contains a
    /// tenant's index and the layer of the fault domain (0 server, 1 rack, 2 pod).
    pub apart: Vec<(usize, usize)>,
}

/// `[[tenant]]`: VMs, their guarantees, and limits on their placement.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Tenant {
    /// Unique name, 1 to 64 characters of `a-z A-Z 0-9 . _ -`.
    name: String,
    /// Number of VMs, if all VMs have the same guarantee.
    #[schemars(range(min = 1, max = 1_048_576))]
    vms: Option<u32>,
    /// Guarantee of each VM for sending and receiving, in bits per second.
    rate: Option<BitsPerSecond>,
    /// Guarantee of each VM for sending, in bits per second. The key `send` requires `recv` and
    /// excludes `rate`.
    send: Option<BitsPerSecond>,
    /// Guarantee of each VM for receiving, in bits per second. Requires `send`.
    recv: Option<BitsPerSecond>,
    /// Classes of VMs with different guarantees. The key `class` is an alternative to `vms`,
    /// `rate`, `send` and `recv`.
    class: Option<Vec<Class>>,
    /// Maximum number of the tenant's VMs on one server. Default: no limit.
    #[schemars(range(min = 1))]
    most_per_server: Option<u32>,
    /// Maximum number of the tenant's VMs in one rack. Default: no limit.
    #[schemars(range(min = 1))]
    most_per_rack: Option<u32>,
    /// Maximum number of the tenant's VMs in one pod. Default: no limit.
    #[schemars(range(min = 1))]
    most_per_pod: Option<u32>,
    /// Minimum number of servers with VMs of the tenant. Default 1.
    #[schemars(range(min = 1))]
    least_servers: Option<u32>,
    /// Minimum number of racks with VMs of the tenant. Default 1.
    #[schemars(range(min = 1))]
    least_racks: Option<u32>,
    /// Minimum number of pods with VMs of the tenant. Default 1.
    #[schemars(range(min = 1))]
    least_pods: Option<u32>,
    /// Names of the servers and switches to which placement is limited. All VMs of the tenant must
    /// be on these servers or on servers below these switches. Default: anywhere.
    within: Option<Vec<String>>,
    /// Earlier tenants with which the tenant must share a fault domain.
    near: Option<Vec<String>>,
    /// Kind of fault domain (server, rack or pod) that the tenant must share with the tenants in
    /// `near`. Requires `near`. Default `rack`.
    near_in: Option<Layer>,
    /// Earlier tenants with which the tenant must not share a fault domain.
    apart: Option<Vec<String>>,
    /// Kind of fault domain (server, rack or pod) that the tenant must not share with the tenants
    /// in `apart`. Requires `apart`. Default `server`.
    apart_in: Option<Layer>,
}

/// `[[tenant.class]]`: a class of VMs with the same guarantee.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Class {
    /// Number of VMs.
    #[schemars(range(min = 1, max = 1_048_576))]
    vms: u32,
    /// Guarantee of each VM for sending and receiving, in bits per second.
    rate: Option<BitsPerSecond>,
    /// Guarantee of each VM for sending, in bits per second. The key `send` requires `recv` and
    /// excludes `rate`.
    send: Option<BitsPerSecond>,
    /// Guarantee of each VM for receiving, in bits per second. Requires `send`.
    recv: Option<BitsPerSecond>,
}

/// Returns the JSON Schema of a file of tenants.
pub(super) fn schema() -> String {
    let mut tables = Tables::default();
    let properties = json!({ "tenant": tables.list::<Tenant>() });
    let guarantee = || -> Value {
        json!([
            need(&["rate"], json!({ "rate": true, "send": false, "recv": false })),
            need(&["send", "recv"], json!({ "send": true, "recv": true, "rate": false }))
        ])
    };
    let names = || json!({ "minItems": 1, "uniqueItems": true });
    let rules = json!({ "$defs": {
        "Class": { "oneOf": guarantee() },
        "Tenant": {
            "properties": {
                "within": names(), "near": names(), "apart": names(), "class": { "minItems": 1 }
            },
            "dependentRequired": { "near_in": ["near"], "apart_in": ["apart"] },
            "if": need(&["class"], json!({ "class": { "type": "array", "minItems": 1 } })),
            "then": { "properties": {
                "vms": false, "rate": false, "send": false, "recv": false
            } },
            "else": {
                "properties": { "vms": true },
                "required": ["vms"],
                "oneOf": guarantee()
            }
        }
    } });
    tables.file("Tenants of a fabric.", properties, &[], rules)
}

pub(super) fn read(
    root: &Table,
    topology: &Topology,
    known: &[String],
    report: &mut Report<'_>,
) -> Option<Vec<TenantWish>> {
    let objects = list::<Tenant>(root, "tenant", report);
    let mut names: HashMap<String, usize> = known.iter().cloned().zip(0..).collect();
    let mut wishes = Vec::new();
    for (at, object) in (known.len()..).zip(&objects) {
        if let Some(name) = &object.name
            && names.get(name).is_some_and(|at| *at >= known.len())
        {
            let problem = format!("the name `{name}` is taken");
            report.at(object, "name", problem, "give each tenant a unique name");
        }
        if let Some(Err(mistake)) = object.name.as_deref().map(check_name) {
            report.at(object, "name", mistake.to_string(), NAME_REMEDY);
        }
        wishes.push(wish(object, topology, &names, report));
        names.extend(object.name.clone().map(|name| (name, at)));
    }
    wishes.into_iter().collect()
}

fn wish(
    object: &Object<'_, Tenant>,
    topology: &Topology,
    names: &HashMap<String, usize>,
    report: &mut Report<'_>,
) -> Option<TenantWish> {
    let tenant = object.value.as_ref()?;
    let hose = hose(object, tenant, report)?;
    let (vms, slots) = (u64::from(hose.vms()), topology.slots_all());
    if vms > slots {
        let problem = format!("{vms} VMs do not fit into the {slots} slots of the datacenter");
        let key = if tenant.class.is_some() { "class" } else { "vms" };
        report.at(object, key, problem, "request fewer VMs");
    }
    let spread = spread(object, tenant, topology, &hose, report);
    let within = listed(object, "within", tenant.within.as_deref(), report);
    let within = within.iter().enumerate().filter_map(|(at, name)| {
        let node = topology.find(name);
        if node.is_none() {
            let problem = format!("the topology has no server or switch `{name}`");
            report.at(object, &format!("within.{at}"), problem, "correct the name");
        }
        node
    });
    let affinity = Affinity { within: within.collect(), ..Affinity::default() };
    let mut others = |key: &str, list: Option<&[String]>, layer: Option<Layer>| {
        if list.is_none() && layer.is_some() {
            let problem = format!("`{key}_in` has no effect without `{key}`");
            let remedy = format!("add `{key}`, or remove `{key}_in`");
            report.at(object, &format!("{key}_in"), problem, remedy);
        }
        let list = listed(object, key, list, report);
        let found = list.iter().enumerate().filter_map(|(at, name)| {
            let other = names.get(name).copied();
            if other.is_none() {
                let problem = format!("no earlier tenant has the name `{name}`");
                let remedy =
                    "correct the name, or move the named tenant before this tenant in the file";
                report.at(object, &format!("{key}.{at}"), problem, remedy);
            }
            other
        });
        found.collect::<Vec<usize>>()
    };
    let near = others("near", tenant.near.as_deref(), tenant.near_in);
    let apart = others("apart", tenant.apart.as_deref(), tenant.apart_in);
    let near = in_layer(&near, tenant.near_in.unwrap_or(Layer::Rack));
    let apart = in_layer(&apart, tenant.apart_in.unwrap_or_default());
    let request = Request { hose, spread, affinity };
    Some(TenantWish { name: tenant.name.clone(), request, near, apart })
}

fn in_layer(tenants: &[usize], layer: Layer) -> Vec<(usize, usize)> {
    tenants.iter().map(|tenant| (*tenant, layer.number())).collect()
}

/// Returns the names in the list `key`. Reports an empty list and a name that the list has twice,
/// because neither has an effect.
fn listed<'a>(
    object: &Object<'_, Tenant>,
    key: &str,
    list: Option<&'a [String]>,
    report: &mut Report<'_>,
) -> &'a [String] {
    let Some(list) = list else { return &[] };
    if list.is_empty() {
        let problem = format!("`{key}` is an empty list and has no effect");
        report.at(object, key, problem, format!("write a name, or remove `{key}`"));
    }
    report.twice(object, key, list);
    list
}

fn hose(object: &Object<'_, Tenant>, tenant: &Tenant, report: &mut Report<'_>) -> Option<Hose> {
    let rates = [tenant.rate, tenant.send, tenant.recv];
    let classes = if let Some(classes) = &tenant.class {
        if classes.is_empty() {
            let problem = "`class` is an empty list and has no effect";
            report.at(object, "class", problem, "add [[tenant.class]], or remove `class`");
            return None;
        }
        if tenant.vms.is_some() || rates.iter().any(Option::is_some) {
            let problem = "`vms`, `rate`, `send` and `recv` of the tenant conflict with \
                           [[tenant.class]]";
            report.at(object, "class", problem, "write them in each [[tenant.class]] only");
            return None;
        }
        classes.clone()
    } else {
        let Some(vms) = tenant.vms else {
            report.at(object, "vms", "`vms` is missing", "add `vms = ...`, or [[tenant.class]]");
            return None;
        };
        vec![Class { vms, rate: tenant.rate, send: tenant.send, recv: tenant.recv }]
    };
    let path = |at: usize, key: &str| match &tenant.class {
        Some(_) => format!("class.{at}.{key}"),
        None => key.to_owned(),
    };
    let mut kinds = Vec::new();
    for (at, class) in classes.iter().enumerate() {
        let (send, recv) = match (class.rate, class.send, class.recv) {
            (Some(rate), None, None) => (rate, rate),
            (None, Some(send), Some(recv)) => (send, recv),
            (rate, send, _) => {
                let sole = if send.is_some() { "send" } else { "recv" };
                let key = if rate.is_some() { "rate" } else { sole };
                let problem = "a guarantee needs either `rate`, or both `send` and `recv`";
                report.at(object, &path(at, key), problem, "write `rate`, or `send` and `recv`");
                continue;
            }
        };
        let kind = VmClass { vms: class.vms, send: send.0, recv: recv.0 };
        match Hose::new(vec![kind]) {
            Ok(_) => kinds.push(kind),
            Err(error) => unfit(object, &path(at, key_of(class, error)), error, report),
        }
    }
    if kinds.len() < classes.len() {
        return None;
    }
    // One class alone is valid, so `class` exists if the sum is too large.
    Hose::new(kinds).inspect_err(|error| unfit(object, "class", *error, report)).ok()
}

/// Returns the key of a class with the mistake `error`.
fn key_of(class: &Class, error: HoseError) -> &'static str {
    match error {
        HoseError::ZeroRate | HoseError::Overflow if class.rate.is_some() => "rate",
        HoseError::ZeroRate if class.send.is_some_and(|send| send.0.0 > 0) => "recv",
        HoseError::ZeroRate | HoseError::Overflow => "send",
        _ => "vms",
    }
}

fn unfit(object: &Object<'_, Tenant>, path: &str, error: HoseError, report: &mut Report<'_>) {
    let text = error.to_string();
    let (problem, remedy) =
        text.split_once("; ").unwrap_or((&text, "see docs/reference/fabric.md"));
    report.at(object, path, problem, remedy);
}

fn spread(
    object: &Object<'_, Tenant>,
    tenant: &Tenant,
    topology: &Topology,
    hose: &Hose,
    report: &mut Report<'_>,
) -> Vec<Spread> {
    let bounds = [
        (
            Layer::Server,
            tenant.most_per_server,
            "most_per_server",
            tenant.least_servers,
            "least_servers",
        ),
        (Layer::Rack, tenant.most_per_rack, "most_per_rack", tenant.least_racks, "least_racks"),
        (Layer::Pod, tenant.most_per_pod, "most_per_pod", tenant.least_pods, "least_pods"),
    ];
    let mut spread = Vec::new();
    for (layer, most_vms, most_key, least_domains, least_key) in bounds {
        let layer = layer.number();
        if most_vms.is_none() && least_domains.is_none() {
            continue;
        }
        let key = if most_vms.is_some() { most_key } else { least_key };
        if layer >= topology.layers() {
            report.at(object, key, "the topology has no layer of this number", "remove the bound");
            continue;
        }
        if most_vms == Some(0) || least_domains == Some(0) {
            report.at(object, key, "the bound is 0", "write 1 or more");
        }
        if least_domains.is_some_and(|least| least > hose.vms()) {
            let problem = format!("more fault domains than VMs ({})", hose.vms());
            report.at(object, least_key, problem, "write at most the tenant's number of VMs");
        }
        spread.push(Spread { layer, most_vms, least_domains });
    }
    spread
}
