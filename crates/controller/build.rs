//! Compiles the gRPC services without `protoc`: protox parses the files and tonic generates the
//! code.

use std::error::Error;

/// gRPC interface between hosts, operators and the Penstock controller. The build generates client
/// and server code.
const FABRIC: &str = "penstock/fabric/v1/fabric.proto";
/// gRPC interface of a Penstock daemon that acts as a switch. The build generates client and server
/// code.
const SWITCH: &str = "penstock/switch/v1/switch.proto";
/// Part of etcd's gRPC interface that Penstock uses. The build generates only client code from
/// etcd's interface.
const ETCD: &str = "etcd/rpc.proto";
/// OpenConfig's gRPC interface to switches (gNMI). The build also generates server code, for the
/// tests.
const GNMI: &str = "github.com/openconfig/gnmi/proto/gnmi/gnmi.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    for (proto, server) in [(FABRIC, true), (SWITCH, true), (ETCD, false), (GNMI, true)] {
        let descriptors = protox::compile([proto], ["proto"])?;
        let mut generator = tonic_prost_build::configure().build_server(server);
        if proto == GNMI {
            // The comments of this file are not valid for rustdoc.
            generator = generator.disable_comments(["."]);
        }
        generator.compile_fds(descriptors)?;
    }
    Ok(())
}
