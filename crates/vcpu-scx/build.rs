//! Compiles the BPF program of the sched_ext scheduler if the cargo feature `bpf` is enabled.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/bpf/penstock.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    if let Err(problem) = compile() {
        println!("cargo::error={problem}");
    }
}

fn compile() -> Result<(), String> {
    let set = |name: &str| env::var(name).map_err(|_| format!("{name} is not set"));
    let object = PathBuf::from(set("OUT_DIR")?).join("penstock.bpf.o");
    let arch = set("CARGO_CFG_TARGET_ARCH")?;
    let define = match arch.as_str() {
        "x86_64" => "-D__TARGET_ARCH_x86",
        "aarch64" => "-D__TARGET_ARCH_arm64",
        _ => return Err(format!("no BPF program for {arch}: build without the feature bpf")),
    };
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", define]);
    clang.arg(format!("-I{}", set("DEP_BPF_INCLUDE")?));
    // Debian has the kernel's basic types in this directory.
    clang.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    let status = clang.args(["-c", SOURCE, "-o"]).arg(&object).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("clang, {status}, on {SOURCE}")),
        Err(error) => Err(format!("clang: {error}; install it (`scripts/setup.sh test`)")),
    }
}
