//! Checks the references between a configuration's objects, and calls each section's own checks.
//!
//! A check that finds a mistake reports the mistake and continues with the next object. A check
//! examines only objects that could be read. A reference to an object that could not be read is not
//! a second mistake, because a check finds the names of all objects.

mod fabric;
mod fdb;
mod ports;
mod rules;
mod switch;
mod tenants;
mod vcpus;
mod world;

use penstock_toml::Report;
use world::World;

use super::draft::Draft;
use super::machine::Machine;
use super::model::HostConfig;

/// Reports every mistake in `draft`.
pub(super) fn check(draft: &Draft<'_>, machine: &Machine, report: &mut Report<'_>) {
    let world = World::new(draft);
    if let Some(host) = &draft.host.value {
        host.check(&draft.host, report);
    }
    if let Some(worker) = &draft.worker.value {
        worker.check(&draft.worker, machine, report);
    }
    if let Some(forwarding) = &draft.forwarding.value {
        forwarding.check(&draft.forwarding, report);
    }
    fabric::check(draft, &world, report);
    switch::check(draft, &world, report);
    tenants::check(draft, &world, report);
    ports::check(draft, &world, report);
    vcpus::check(draft, machine, report);
    rules::check(draft, &world, report);
    fdb::check(draft, &world, report);
}

/// Reports rules that have too many different masks for a rule table.
pub(super) fn check_tables(config: &HostConfig, draft: &Draft<'_>, report: &mut Report<'_>) {
    for (rule, problem) in crate::snapshot::rules::check_rules(config) {
        if let Some(object) = draft.rules.get(rule) {
            let remedy = "use fewer combinations of fields, prefix lengths and port ranges";
            report.at(object, "match", problem, remedy);
        }
    }
}
