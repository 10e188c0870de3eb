//! Compiles the descriptions of gRPC services without `protoc`: protox parses, tonic generates.

use std::error::Error;

/// Ours: both ends.
const FABRIC: &str = "penstock/fabric/v1/fabric.proto";
/// The part of etcd's interface that is used, as a client.
const ETCD: &str = "etcd/rpc.proto";

fn main() -> Result<(), Box<dyn Error>> {
    for (proto, server) in [(FABRIC, true), (ETCD, false)] {
        println!("cargo:rerun-if-changed=proto/{proto}");
        let descriptors = protox::compile([proto], ["proto"])?;
        tonic_prost_build::configure().build_server(server).compile_fds(descriptors)?;
    }
//! Compiles gNMI's interface without `protoc`: protox parses it, tonic generates.
const PROTO: &str = "github.com/openconfig/gnmi/proto/gnmi/gnmi.proto";
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    // Comments of the interface are not written for rustdoc.
    tonic_prost_build::configure().disable_comments(["."]).compile_fds(descriptors)?;
    Ok(())
}
