//! A draft is a configuration file whose objects were read one by one. The references between the
//! draft's objects are not checked yet.

use penstock_toml::{Object, Report, list, section, single, unknown_sections};
use penstock_vcpu::terms::{VcpuSection, VmTable};
use serde::de::DeserializeOwned;
use toml_edit::{Item, Table};

use super::fabric::FabricSection;
use super::host::{ForwardingSection, HostSection, WorkerSection};
use super::model::{FdbStatic, HostConfig, Port, Tenant};
use super::rule::Rule;
use super::schema::schema;
use super::share::ModelSection;
use super::switch::SwitchSection;
use super::upgrade::ATTACHMENT;

const SECTIONS: [&str; 12] = [
    "host",
    "worker",
    "forwarding",
    "model",
    "fabric",
    "switch",
    "vcpu",
    "tenant",
    "port",
    "vm",
    "rule",
    "fdb",
];

/// A configuration, before the references between its objects are checked.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) host: Object<'a, HostSection>,
    pub(super) worker: Object<'a, WorkerSection>,
    pub(super) forwarding: Object<'a, ForwardingSection>,
    pub(super) model: Object<'a, ModelSection>,
    pub(super) fabric: Option<Object<'a, FabricSection>>,
    pub(super) switch: Option<Object<'a, SwitchSection>>,
    pub(super) vcpu: Option<Object<'a, VcpuSection>>,
    pub(super) tenants: Vec<Object<'a, Tenant>>,
    pub(super) ports: Vec<Object<'a, Port>>,
    pub(super) vms: Vec<Object<'a, VmTable>>,
    pub(super) rules: Vec<Object<'a, Rule>>,
    pub(super) fdb: Vec<Object<'a, FdbStatic>>,
}

impl Draft<'_> {
    pub(super) fn finish(&self) -> Option<HostConfig> {
        fn all<T: Clone>(objects: &[Object<'_, T>]) -> Option<Vec<T>> {
            objects.iter().map(|object| object.value.clone()).collect()
        }
        Some(HostConfig {
            host: self.host.value.clone()?,
            worker: self.worker.value.clone()?,
            forwarding: self.forwarding.value.clone()?,
            model: self.model.value.clone()?,
            fabric: match &self.fabric {
                Some(fabric) => Some(fabric.value.clone()?),
                None => None,
            },
            switch: match &self.switch {
                Some(switch) => Some(switch.value.clone()?),
                None => None,
            },
            vcpu: match &self.vcpu {
                Some(vcpu) => Some(vcpu.value.clone()?),
                None => None,
            },
            tenants: all(&self.tenants)?,
            ports: all(&self.ports)?,
            vms: all(&self.vms)?,
            rules: all(&self.rules)?,
            fdb: all(&self.fdb)?,
        })
    }
}

pub(super) fn read_draft<'a>(root: &'a Table, report: &mut Report<'_>) -> Draft<'a> {
    report.set_hint(of_a_port);
    report.set_schema(schema);
    unknown_sections(root, &SECTIONS, report);
    let host = match section(root, "host", report) {
        Some(host) => host,
        None => {
            let mut remedy = "add [host] with `name = \"...\"`".to_owned();
            if root.contains_key("vcpu") {
                remedy.push_str(
                    "; if the file is for `penstock vcpu run` alone, `penstock vcpu check --config \
                     FILE` checks it",
                );
            }
            report.file("the section [host] is missing", remedy);
            Object { label: "[host]".to_owned(), name: None, value: None, table: None }
        }
    };
    Draft {
        host,
        worker: section(root, "worker", report).unwrap_or_else(|| absent("[worker]")),
        forwarding: section(root, "forwarding", report).unwrap_or_else(|| absent("[forwarding]")),
        model: section(root, "model", report).unwrap_or_else(|| absent("[model]")),
        fabric: section(root, "fabric", report),
        switch: section(root, "switch", report),
        vcpu: section(root, "vcpu", report),
        tenants: list(root, "tenant", report),
        ports: list(root, "port", report),
        vms: list(root, "vm", report),
        rules: list(root, "rule", report),
        fdb: list(root, "fdb", report),
    }
}

/// Reads the object of a request. `kind` is the object's kind, such as `port`.
pub(super) fn read_object<T: DeserializeOwned>(
    root: &Table,
    kind: &str,
    report: &mut Report<'_>,
) -> Option<T> {
    report.set_hint(of_a_port);
    report.set_schema(schema);
    let name = root.get("name").and_then(Item::as_str);
    let label = name.map_or_else(|| kind.to_owned(), |name| format!("{kind} {name:?}"));
    single(root, kind, label, report).value
}

fn absent<'a, T: Default>(label: &str) -> Object<'a, T> {
    Object { label: label.to_owned(), name: None, value: Some(T::default()), table: None }
}

/// Returns the remedy for a key of a port that belongs in the table of the port's type.
fn of_a_port(wrong: &str, known: &[&str]) -> Option<String> {
    if !known.contains(&"vhost-user") {
        return None;
    }
    if ATTACHMENT.contains(&wrong) {
        return Some(format!("write the key into the table of the port's type, as in tap.{wrong}"));
    }
    (wrong == "type").then(|| {
        "replace `type` by a table vhost-user, tap, packet or xdp, as in tap.interface = \"tap1\""
            .to_owned()
    })
}
