# Plugin for `sos report` (https://github.com/sosreport/sos), version 4.0 or newer. It collects the
# state of the switch, the vCPU scheduler and the controller. `penstock support-bundle` masks the
# secrets, so the plugin does not read a configuration file itself.

import os

from sos.report.plugins import DebianPlugin, Plugin, RedHatPlugin, UbuntuPlugin


# Version 4.0 takes only plugins that name their distribution.
class Penstock(Plugin, DebianPlugin, UbuntuPlugin, RedHatPlugin):
    short_desc = "Penstock virtual switch"

    plugin_name = "penstock"
    profiles = ("network", "virt")
    packages = ("penstock",)
    services = (
        "penstock",
        "penstock-helper",
        "penstock-vcpu",
        "penstock-controller",
    )

    def setup(self):
        bundle = os.path.join(self.get_cmd_output_path(), "penstock-support.tar.gz")
        self.add_cmd_output([
            "penstock --version",
            "penstock support-bundle --out %s" % bundle,
            "penstock host check --config /etc/penstock/host.toml",
            "ls -lR /run/penstock /run/penstock-controller",
            "ls -lR /etc/penstock /etc/penstock-controller",
            "ls -lR /var/lib/penstock /var/lib/penstock-controller",
        ])
