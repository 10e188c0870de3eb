//! Draws the tree as SVG, coloured by load. Links show their reserved bandwidth, and servers show
//! their used slots.
//!
//! The name of a node is below the node. If a layer has no room for the names of all nodes, only
//! its first and its last node have a visible name. A node without a visible name shows its name as
//! a tooltip.

use std::fmt::Write as _;

use penstock_fabric::ledger::Service;
use penstock_fabric::tenant_placement::Datacenter;
use penstock_fabric::topology::{LinkId, NodeId};

use crate::table::{bits_per_second, to_f64};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 20.0;
const LAYER: f64 = 150.0;
const BOX: f64 = 10.0;
/// Colour of nodes and links that are out of service.
const OUT: &str = "#bbb";
/// Width of a character of a name, in units of the SVG.
const LETTER: f64 = 7.0;

/// Returns the picture of a datacenter called `name`.
pub(super) fn svg(datacenter: &Datacenter, name: &str) -> String {
    let topology = datacenter.topology();
    let height = LAYER * number(topology.layers()) + 3.0 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"{MARGIN}\" font-size=\"16\">{}</text>\n",
        escaped(name)
    );
    legend(&mut text);
    // Writing to a String cannot fail.
    for layer in 1..topology.layers() {
        for link in topology.layer(layer).flat_map(|node| topology.down(node)) {
            line(&mut text, datacenter, link);
        }
    }
    for layer in 0..topology.layers() {
        for node in topology.layer(layer) {
            place(&mut text, datacenter, node);
        }
        names(&mut text, datacenter, layer);
    }
    text.push_str("</svg>\n");
    text
}

fn legend(text: &mut String) {
    let _ = write!(
        text,
        "<text x=\"{MARGIN}\" y=\"40\">links: reserved bandwidth; servers: used slots</text>"
    );
    let steps =
        [0.0, 0.25, 0.5, 0.75, 1.0].map(|load| (colour(load), format!("{:.0} %", 100.0 * load)));
    let steps = steps.into_iter().chain([(OUT.to_owned(), "out of service".to_owned())]);
    for (at, (fill, meaning)) in steps.enumerate() {
        let x = 240.0 + 70.0 * number(at);
        let _ = writeln!(
            text,
            "<circle cx=\"{x}\" cy=\"36\" r=\"6\" fill=\"{fill}\"/>\
             <text x=\"{}\" y=\"40\">{meaning}</text>",
            x + BOX
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "coordinates of a picture are far below 2^53")]
fn number(n: usize) -> f64 {
    n as f64
}

/// Returns a node's position, and the width that is available for the node.
fn spot(datacenter: &Datacenter, node: NodeId) -> (f64, f64, f64) {
    let topology = datacenter.topology();
    let layer = topology.layer_of(node);
    let first = topology.layer(layer).next().map_or(0, |first| first.0);
    let step = (WIDTH - 2.0 * MARGIN) / number(topology.layer(layer).count());
    let x = MARGIN + step * (f64::from(node.0 - first) + 0.5);
    let y = LAYER * (number(topology.layers() - layer) - 0.5) + 2.0 * MARGIN;
    (x, y, step)
}

/// Returns a colour from green for 0 to red for 1.
fn colour(load: f64) -> String {
    format!("hsl({:.0} 80% 45%)", 120.0 * (1.0 - load.clamp(0.0, 1.0)))
}

fn line(text: &mut String, datacenter: &Datacenter, link: LinkId) {
    let (topology, ledger) = (datacenter.topology(), datacenter.ledger());
    let (child, parent) = (topology.child(link), topology.parent(link));
    let (x1, y1, _) = spot(datacenter, child);
    let (x2, y2, _) = spot(datacenter, parent);
    let (reserved, limit) = (ledger.reserved(link).larger(), ledger.limit(link));
    #[expect(clippy::cast_precision_loss, reason = "a colour")]
    let load = reserved.0 as f64 / limit.0.max(1) as f64;
    let stroke = if limit.0 == 0 { OUT.to_owned() } else { colour(load) };
    let width = 1.0 + 3.0 * load.clamp(0.0, 1.0);
    let title = format!(
        "{} - {}: {} of {} reserved, tenants: {}",
        topology.name(child),
        topology.name(parent),
        bits_per_second(to_f64(reserved.0)),
        bits_per_second(to_f64(limit.0)),
        ledger.tenants(link)
    );
    let _ = writeln!(
        text,
        "<line x1=\"{x1:.1}\" y1=\"{:.1}\" x2=\"{x2:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" \
         stroke-width=\"{width:.2}\"><title>{}</title></line>",
        y1 - BOX,
        y2 + BOX,
        escaped(&title)
    );
}

fn place(text: &mut String, datacenter: &Datacenter, node: NodeId) {
    let (topology, ledger) = (datacenter.topology(), datacenter.ledger());
    let (x, y, step) = spot(datacenter, node);
    let width = (step * 0.8).clamp(0.3, 40.0);
    let (mut title, mut fill) = (topology.name(node).to_string(), "#456".to_owned());
    if topology.is_server(node) {
        let (free, all) = (ledger.free_slots(node), topology.slots(node));
        fill = colour(f64::from(all - free) / f64::from(all));
        let _ = write!(title, ": {} of {all} slots", all - free);
    }
    if ledger.service(node) != Service::In {
        fill = OUT.to_owned();
        let _ = write!(title, ", {}", ledger.service(node));
    }
    let _ = writeln!(
        text,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\" \
         fill=\"{fill}\"><title>{}</title></rect>",
        x - width / 2.0,
        y - BOX,
        2.0 * BOX,
        escaped(&title)
    );
}

/// Writes the names of a layer's nodes: all names, or the first and the last if there is no room
/// for all.
fn names(text: &mut String, datacenter: &Datacenter, layer: usize) {
    let topology = datacenter.topology();
    let name = |node| topology.name(node).to_string();
    let nodes: Vec<NodeId> = topology.layer(layer).collect();
    let widest = nodes.iter().map(|node| name(*node).chars().count()).max().unwrap_or(0);
    for (at, node) in nodes.iter().enumerate() {
        let (x, y, step) = spot(datacenter, *node);
        let anchor = match LETTER * number(widest + 1) <= step {
            true => "middle",
            false if at == 0 => "start",
            false if at + 1 == nodes.len() => "end",
            false => continue,
        };
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            y + BOX + 14.0,
            escaped(&name(*node))
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::hose::Hose;
    use penstock_fabric::tenant_placement::{Policy, Request};
    use penstock_fabric::topology::{Regular, Tier};
    use penstock_units::BitsPerSecond;

    #[test]
    fn a_full_link_is_red_and_an_empty_one_green() {
        let tier = Tier { fan_out: 3, uplinks: 1, rate: BitsPerSecond(10) };
        let topology = Regular { slots: 1, tiers: vec![tier] }.build().unwrap();
        let mut datacenter = Datacenter::new(topology, 0, Policy::default()).unwrap();
        let request = Request::new(Hose::homogeneous(2, BitsPerSecond(10)).unwrap());
        datacenter.place(&request).unwrap();
        datacenter.set_service(NodeId(3), Service::In);
        let svg = svg(&datacenter, "a <b>");
        assert_eq!(svg.matches("stroke=\"hsl(0 80% 45%)\"").count(), 2);
        assert_eq!(svg.matches("stroke=\"hsl(120 80% 45%)\"").count(), 1);
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("server-0: 1 of 1 slots"));
        assert_eq!(svg.matches("<rect").count(), 5);
        for text in
            [">server-0</text>", ">server-2</text>", ">100 %</text>", ">out of service</text>"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }

    #[test]
    fn a_wide_layer_names_its_first_and_last_node() {
        let tier = Tier { fan_out: 100, uplinks: 1, rate: BitsPerSecond(10) };
        let topology = Regular { slots: 1, tiers: vec![tier] }.build().unwrap();
        let mut datacenter = Datacenter::new(topology, 0, Policy::default()).unwrap();
        datacenter.set_service(NodeId(7), Service::Drained);
        let svg = svg(&datacenter, "wide");
        assert_eq!(svg.matches("</text>").count(), 2 + 6 + 3, "title, legend, three names");
        assert!(svg.contains(">server-0</text>") && svg.contains(">server-99</text>"), "{svg}");
        assert!(svg.contains("server-7: 0 of 1 slots, drained</title>"), "{svg}");
    }
}
