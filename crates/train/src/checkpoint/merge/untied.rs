//! An embedding and an output head that share a weight, of which one or both have an adapter: the merged files have a weight
//! for each.

use super::super::names::{HEAD, candidates};
use super::{Change, Copied, Merge};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{LayerRole, LinearLayer};
use std::collections::HashSet;

/// Whether a layer is the embedding or the head of a model in which these share a weight.
pub(super) fn shares_weight(layers: &[LinearLayer], layer: &LinearLayer) -> bool {
    let head = layers.iter().find(|layer| layer.role == LayerRole::Head);
    let is_tied = head.is_some_and(|head| !head.has_own_weight());
    is_tied && matches!(layer.role, LayerRole::Embedding | LayerRole::Head)
}

/// Whether models of this family may have a head with a weight of its own.
pub(super) fn can_have_own_head(model: &ModelConfig) -> bool {
    matches!(ModelConfig::with_own_head(&model.to_json()), Ok(Some(_)))
}

impl Merge {
    /// Changes the embedding or the head, whose shared weight is the model's tensor `tensor`, `stored` in the files.
    pub(super) fn untie(&mut self, tensor: &str, stored: String, role: LayerRole, change: Change) {
        self.is_untied = true;
        let none = HashSet::new();
        let is_head = |name: &str| candidates(HEAD, &none).any(|head| head == name);
        let own = candidates(HEAD, &none).map(|head| head.into_owned()).find(|head| self.weights.has(head));
        // The weight that the files may lack: the embedding's if they have the shared one under the head's name.
        let (lacks, lacking_role) = match &own {
            _ if is_head(&stored) => (tensor.to_owned(), LayerRole::Embedding),
            Some(own) => (own.clone(), LayerRole::Head),
            None if stored.starts_with("language_model.") => (format!("language_model.{HEAD}"), LayerRole::Head),
            None => (HEAD.to_owned(), LayerRole::Head),
        };
        if self.weights.has(&lacks) {
            self.changes.insert(if role == lacking_role { lacks } else { stored }, change);
            return;
        }
        let from = stored.clone();
        let copy = self.copy.get_or_insert(Copied { name: lacks, from, change: None });
        if role == lacking_role {
            copy.change = Some(change);
        } else {
            self.changes.insert(stored, change);
        }
    }
}
