//! The view of virtual processors: what each has, and how long it waits for it.

use super::model::Model;
use crate::verbs::vcpu;

/// Widths of the columns on a terminal.
pub const WIDTHS: [u16; 13] = [14, 9, 8, 4, 8, 8, 9, 9, 9, 9, 8, 8, 7];

/// A row for each vCPU.
#[must_use]
pub fn rows(model: &Model) -> Vec<[String; 13]> {
    let vms = model.vcpus().into_iter().flat_map(|state| &state.vms);
    vms.flat_map(|vm| vm.vcpus.iter().map(|each| vcpu::cells(vm, each))).collect()
}

/// Why there is nothing to show.
#[must_use]
pub fn absent(model: &Model) -> String {
    match model.status().vcpu_dir.as_str() {
        "" => "no vCPUs are scheduled here: the configuration has no [vcpu]".to_owned(),
        dir => format!("no scheduler tells of vCPUs in {dir}: start `penstock vcpu run`"),
    }
}

/// All of it as text; empty where no vCPUs are scheduled.
#[must_use]
pub fn table(model: &Model) -> String {
    match model.vcpus() {
        Some(state) => vcpu::table(&state.vms),
        None if model.status().vcpu_dir.is_empty() => String::new(),
        None => format!("{}\n", absent(model)),
    }
}
