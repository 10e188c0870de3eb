# Plugin for `sos report` (https://github.com/sosreport/sos), version 4.0 or newer. It collects the
# state of the switch, the vCPU scheduler and the controller. Private keys and passwords are in
# files of their own, which the plugin does not read.

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

    controller = "/run/penstock-controller/controller.sock"

    def setup(self):
        self.add_copy_spec([
            "/etc/penstock/*.toml",
            "/etc/penstock-controller/*.toml",
            "/etc/systemd/system/penstock*.service.d/*.conf",
        ])
        self.add_cmd_output([
            "penstock --version",
            "penstock host check --config /etc/penstock/host.toml",
            "penstock host show --json",
            "penstock host config",
            "penstock port list --json",
            "penstock tenant list --json",
            "penstock flow list --json",
            "penstock fdb list --json",
            "penstock stats --json",
            "penstock stats --check",
            "penstock report --since 24h --json",
            "penstock vcpu show --json",
            "ls -lR /run/penstock /run/penstock-controller",
            "ls -lR /etc/penstock /etc/penstock-controller",
            "ls -lR /var/lib/penstock /var/lib/penstock-controller",
        ])
        for question in ("status", "topology", "tenants", "bindings", "events"):
            self.add_cmd_output(
                "penstock --socket %s controller %s --json"
                % (self.controller, question))

    def postproc(self):
        # A key such as `password_file` names a file and remains. A key with the text of a secret
        # is a mistake in a configuration file, but its text must not leave the host.
        secret = (r'(?im)^(\s*#?\s*[\w."-]*(?:password|secret|token|private_key)"?\s*=\s*)'
                  r'("[^"]*"|\'[^\']*\'|\S+)')
        # The user and password of an address such as redis://user:password@host.
        address = r"(://)[^/@\s\"']+@"
        for path in (r"/etc/penstock.*/.*\.toml",):
            self.do_path_regex_sub(path, secret, r'\1"********"')
            self.do_path_regex_sub(path, address, r"\1********@")
        self.do_cmd_output_sub("penstock host config", secret, r'\1"********"')
        self.do_cmd_output_sub("penstock host config", address, r"\1********@")
