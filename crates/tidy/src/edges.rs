//! Checks the dependencies between crates. Each crate is in a layer and may depend only on crates
//! in lower layers:
//!
//! - Layer 0 consists of the crate `units`.
//! - Layer 1 consists of the crates `toml`, `qos`, `vcpu` and `fabric`.
//! - Layer 2 consists of the crates `dataplane`, `controller`, `vcpu-host` and `vcpu-scx`.
//! - Layer 3 consists of the crates `control` and `guest`.
//! - Layer 4 consists of the crates `sim` and `penstock` (the product).
//! - Layer 5 consists of the crate `lab`.
//!
//! Dependencies of tests may ignore the layers, but must not form a circle of crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::Finding;

/// Crates that use no clock and no network.
const PURE: &[&str] = &["toml", "qos", "vcpu", "fabric"];
const SERVICES: &[&str] = &["dataplane", "controller", "vcpu-host", "vcpu-scx"];
/// Crates that configure the data path (`control`), or that connect to it as a VM (`guest`).
const ROUND: &[&str] = &["control", "guest"];

/// Crates for tests and checks. No product code may use the crates `tidy` and `testing`, and both
/// crates use no other crate of the workspace.
const APART: &[&str] = &["tidy", "testing"];

/// Returns a crate's layer, or `None` for a name without a layer. A crate may use only crates in
/// lower layers.
fn layer(krate: &str) -> Option<u8> {
    match krate {
        "units" => Some(0),
        _ if PURE.contains(&krate) => Some(1),
        _ if SERVICES.contains(&krate) => Some(2),
        _ if ROUND.contains(&krate) => Some(3),
        // The product contains neither the simulator nor experiments.
        "sim" | "penstock" => Some(4),
        "lab" => Some(5),
        // Fuzz targets may use every crate.
        "fuzz" => Some(6),
        _ if APART.contains(&krate) => Some(0),
        _ => None,
    }
}

/// The crates of the workspace by directory name, and their dependencies.
#[derive(Debug, Default)]
pub struct Graph {
    /// Normal and build dependencies, as pairs of a crate and a crate that it uses.
    pub uses: BTreeSet<(String, String)>,
    /// Dependencies of tests, examples and benches.
    pub tests_use: BTreeSet<(String, String)>,
    /// Crate roots (library and programs) by crate, relative to the root of the tree.
    pub roots: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: String,
}

impl Graph {
    /// Reads the graph of dependencies between crates from `cargo metadata`.
    pub fn read(root: &Path) -> Result<Self> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let out = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(root)
            .output()
            .context("cargo metadata")?;
        let errors = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "cargo metadata: {errors}");
        let metadata: Metadata = serde_json::from_slice(&out.stdout)?;
        let mut graph = Self::default();
        for package in metadata.packages {
            graph.add(root, &package);
        }
        Ok(graph)
    }

    fn add(&mut self, root: &Path, package: &Package) {
        let krate = short(&package.name).to_owned();
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            let edge = (krate.clone(), short(&dependency.name).to_owned());
            match dependency.kind.as_deref() {
                Some("dev") => self.tests_use.insert(edge),
                _ => self.uses.insert(edge),
            };
        }
        let is_root = |t: &&Target| t.kind.iter().any(|k| k == "lib" || k == "bin");
        let paths = package.targets.iter().filter(is_root).map(|t| {
            let path = Path::new(&t.src_path);
            path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
        });
        self.roots.insert(krate, paths.collect());
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("penstock-").unwrap_or(name)
}

/// Reports forbidden dependencies, crates without a layer, and circles through tests.
pub fn check(graph: &Graph) -> Vec<Finding> {
    let manifest = |krate: &str| format!("crates/{krate}/Cargo.toml");
    let mut found = Vec::new();
    for krate in graph.roots.keys().filter(|k| layer(k).is_none()) {
        let what = "crate without a layer: give it one in crates/tidy/src/edges.rs";
        found.push(Finding::new(&manifest(krate), 0, what));
    }
    for (from, to) in &graph.uses {
        let (Some(upper), Some(lower)) = (layer(from), layer(to)) else { continue };
        if lower >= upper || APART.contains(&&**to) || APART.contains(&&**from) {
            found.push(Finding::new(&manifest(from), 0, format!("{from} may not use {to}")));
        }
    }
    for krate in graph.roots.keys().filter(|k| reaches_itself(graph, k)) {
        let what = "depends on itself through its dev-dependencies";
        found.push(Finding::new(&manifest(krate), 0, what));
    }
    found
}

fn reaches_itself(graph: &Graph, start: &str) -> bool {
    let edges = || graph.uses.iter().chain(&graph.tests_use);
    let mut seen = BTreeSet::new();
    let mut todo = vec![start];
    while let Some(at) = todo.pop() {
        for (_, to) in edges().filter(|(from, _)| from == at) {
            if to == start {
                return true;
            }
            if seen.insert(to.as_str()) {
                todo.push(to);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(uses: &[(&str, &str)], tests_use: &[(&str, &str)]) -> Graph {
        let set = |edges: &[(&str, &str)]| {
            edges.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        let names = uses.iter().chain(tests_use).flat_map(|(a, b)| [a, b]);
        let roots = names.map(|n| ((*n).to_owned(), Vec::new())).collect();
        Graph { uses: set(uses), tests_use: set(tests_use), roots }
    }

    #[test]
    fn arrows_point_down() {
        let good = [("qos", "units"), ("dataplane", "qos"), ("control", "dataplane")];
        assert!(check(&graph(&good, &[])).is_empty());
        let good = [("sim", "control"), ("lab", "sim"), ("penstock", "guest")];
        assert!(check(&graph(&good, &[])).is_empty());
        assert_eq!(check(&graph(&[("penstock", "sim"), ("penstock", "lab")], &[])).len(), 2);
        assert_eq!(check(&graph(&[("dataplane", "control")], &[])).len(), 1);
        assert_eq!(check(&graph(&[("qos", "vcpu")], &[])).len(), 1);
        assert_eq!(check(&graph(&[("guest", "control")], &[])).len(), 1);
        assert_eq!(check(&graph(&[("guest", "lab")], &[])).len(), 1);
        assert_eq!(check(&graph(&[("dataplane", "sim")], &[])).len(), 1);
        assert_eq!(check(&graph(&[("penstock", "tidy")], &[])).len(), 1);
        assert_eq!(check(&graph(&[("penstock", "testing")], &[])).len(), 1);
        assert!(check(&graph(&[], &[("qos", "testing")])).is_empty());
    }

    #[test]
    fn a_new_crate_needs_a_layer() {
        assert_eq!(check(&graph(&[("novel", "units")], &[])).len(), 1);
    }

    #[test]
    fn tests_may_look_up_but_not_round() {
        assert!(check(&graph(&[], &[("dataplane", "lab")])).is_empty());
        let round = check(&graph(&[("lab", "dataplane")], &[("dataplane", "lab")]));
        assert_eq!(round.len(), 2);
    }

    #[test]
    fn this_workspace_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize();
        let graph = Graph::read(&root.expect("exists")).expect("cargo metadata");
        assert!(graph.roots["tidy"].contains(&"crates/tidy/src/main.rs".to_owned()));
    }
}
