//! Nodes: of thousands, a job needs to know its own and those that announce their end.

use super::recently_gone::RecentlyGone;
use super::relist::Relist;
use crate::decide::{NODE_SIGNALS, ObservedNode, Settings, announced_end};
use crate::node_object::NodeObject;
use crate::observe_node;
use kube::{Resource as _, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// Index of all nodes.
#[derive(Debug)]
pub struct NodeIndex {
    nodes: BTreeMap<String, ObservedNode>,
    /// Nodes that announce their end to every job.
    leaving: BTreeSet<String>,
    /// What announces the end of a node for every job.
    signals: Vec<String>,
    /// The labels that say where a node is.
    settings: Settings,
    relist: Relist<String>,
    recently_gone: RecentlyGone,
}

impl NodeIndex {
    pub(super) fn new(settings: Settings) -> NodeIndex {
        let known = NODE_SIGNALS.iter().map(|signal| signal.name.to_owned());
        let signals = known.chain(settings.node_signals.iter().cloned()).collect();
        NodeIndex {
            nodes: BTreeMap::new(),
            leaving: BTreeSet::new(),
            signals,
            settings,
            relist: Relist::default(),
            recently_gone: RecentlyGone::default(),
        }
    }

    /// The nodes with these names, if they exist, and those that announce their end. `signals`: those of this job.
    #[must_use]
    pub fn of<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        signals: &[String],
    ) -> BTreeMap<String, ObservedNode> {
        let entry = |name: &str| Some((name.to_owned(), self.nodes.get(name)?.clone()));
        let mut found: BTreeMap<String, ObservedNode> = names.filter_map(entry).collect();
        found.extend(self.leaving.iter().filter_map(|name| entry(name)));
        if !signals.is_empty() {
            let own = self.nodes.iter();
            let own = own.filter(|(_, node)| announced_end(node, signals).is_some());
            found.extend(own.map(|(name, node)| (name.clone(), node.clone())));
        }
        found
    }

    /// Whether there is a node of this name.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    pub(super) fn begin(&mut self) {
        self.relist.begin();
    }

    /// Whether something has changed that decisions are made from: heartbeats are not.
    pub(super) fn seen(&mut self, node: &NodeObject) -> bool {
        let name = node.name_any();
        self.relist.seen(&name);
        self.put(name, observe_node::node(node, &self.settings))
    }

    /// Notes a node that was read separately, unless the watch has shown it in the meantime, or that it is gone.
    pub(super) fn read(&mut self, node: &NodeObject) {
        let name = node.name_any();
        let is_gone = self.recently_gone.has(&node.uid().unwrap_or_default());
        if !self.knows(&name) && !is_gone {
            self.put(name, observe_node::node(node, &self.settings));
        }
    }

    fn put(&mut self, name: String, node: ObservedNode) -> bool {
        if self.nodes.get(&name) == Some(&node) {
            return false;
        }
        if announced_end(&node, &self.signals).is_some() {
            self.leaving.insert(name.clone());
        } else {
            self.leaving.remove(&name);
        }
        self.nodes.insert(name, node);
        true
    }

    pub(super) fn gone(&mut self, node: &NodeObject) {
        self.recently_gone.note(node.meta());
        self.remove(&node.name_any());
    }

    fn remove(&mut self, name: &str) {
        self.nodes.remove(name);
        self.leaving.remove(name);
    }

    /// The nodes that are gone.
    pub(super) fn complete(&mut self) -> Vec<String> {
        let gone = self.relist.complete(self.nodes.keys());
        for name in &gone {
            self.remove(name);
        }
        gone
    }
}
