//! Compiles the descriptions of gRPC services without `protoc`: protox parses, tonic generates.

use std::error::Error;

/// Ours: both ends.
const FABRIC: &str = "penstock/fabric/v1/fabric.proto";
/// Ours: a daemon of ours as a switch, both ends.
const SWITCH: &str = "penstock/switch/v1/switch.proto";
/// The part of etcd's interface that is used, as a client.
const ETCD: &str = "etcd/rpc.proto";
/// OpenConfig's interface to switches; tests are a switch.
const GNMI: &str = "github.com/openconfig/gnmi/proto/gnmi/gnmi.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    for (proto, server) in [(FABRIC, true), (SWITCH, true), (ETCD, false), (GNMI, true)] {
        let descriptors = protox::compile([proto], ["proto"])?;
        let mut generator = tonic_prost_build::configure().build_server(server);
        if proto == GNMI {
            // Its comments are not written for rustdoc.
            generator = generator.disable_comments(["."]);
        }
        generator.compile_fds(descriptors)?;
    }
    Ok(())
}
