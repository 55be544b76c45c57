//! How the sources of a plan are serialized. The units of a stage have the same sources, so consecutive units with equal lists are written
//! as one row: a list per unit would grow with the number of units times that of workers.

use crate::ids::WorkerId;
use crate::layout::UNITS_MAX;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of entries of all lists together: a run of thousands of workers has far fewer.
const ENTRIES_MAX: usize = 1 << 24;

/// An error: no plan has this many sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("sources of {units} units, {entries} entries; at most {UNITS_MAX} and {ENTRIES_MAX} are allowed")]
pub struct TooManySources {
    /// Units so far.
    pub units: usize,
    /// Entries of all lists so far.
    pub entries: usize,
}

/// The sources as rows: how many consecutive units, and their sources.
pub fn source_rows(sources: &[Vec<WorkerId>]) -> impl Iterator<Item = (usize, &[WorkerId])> {
    let rows = sources.chunk_by(|a, b| a == b);
    rows.filter_map(|row| Some((row.len(), row.first()?.as_slice())))
}

/// The list of each unit, from the rows. Memory is allocated only after the lengths are checked.
///
/// # Errors
/// There are too many.
pub fn sources_of_rows(
    rows: impl IntoIterator<Item = (usize, Vec<WorkerId>)>,
) -> Result<Vec<Vec<WorkerId>>, TooManySources> {
    let mut sources = Vec::new();
    let mut entries = 0_usize;
    for (count, workers) in rows {
        let units = sources.len().saturating_add(count);
        entries = entries.saturating_add(count.saturating_mul(workers.len()));
        if units > UNITS_MAX || entries > ENTRIES_MAX {
            return Err(TooManySources { units, entries });
        }
        sources.extend(std::iter::repeat_n(workers, count));
    }
    Ok(sources)
}

/// A row in a document.
#[derive(Serialize)]
struct Row<'a> {
    units: usize,
    workers: &'a [WorkerId],
}

/// The forms that can be read: earlier releases wrote one list for each unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Row { units: usize, workers: Vec<WorkerId> },
    Unit(Vec<WorkerId>),
}

pub(super) fn serialize<S: Serializer>(sources: &[Vec<WorkerId>], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(source_rows(sources).map(|(units, workers)| Row { units, workers }))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Vec<WorkerId>>, D::Error> {
    let rows = Vec::<Written>::deserialize(d)?;
    let rows = rows.into_iter().map(|row| match row {
        Written::Row { units, workers } => (units, workers),
        Written::Unit(workers) => (1, workers),
    });
    sources_of_rows(rows).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Of(#[serde(with = "super")] Vec<Vec<WorkerId>>);

    fn of(lists: &[&[u64]]) -> Of {
        Of(lists
            .iter()
            .map(|l| l.iter().copied().map(WorkerId).collect())
            .collect())
    }

    #[test]
    fn units_in_a_row_with_the_same_sources_are_written_once() {
        let sources = of(&[&[1, 2], &[1, 2], &[], &[3], &[3], &[3], &[1, 2]]);
        let text = serde_json::to_string(&sources).unwrap();
        assert_eq!(text.matches("units").count(), 4, "{text}");
        assert_eq!(serde_json::from_str::<Of>(&text).unwrap(), sources);
    }

    #[test]
    fn one_list_for_each_unit_is_read_too() {
        let id = |w: u64| serde_json::to_string(&WorkerId(w)).unwrap();
        let text = format!("[[{},{}],[]]", id(1), id(2));
        assert_eq!(serde_json::from_str::<Of>(&text).unwrap(), of(&[&[1, 2], &[]]));
    }

    #[test]
    fn too_many_units_are_refused_before_allocation() {
        let error =
            serde_json::from_str::<Of>(r#"[{"units":1048577,"workers":[]},{"units":1,"workers":[]}]"#);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("sources of 1048578 units")
        );
        assert!(sources_of_rows([(1 << 20, vec![WorkerId(1); 17])]).is_err());
        assert!(sources_of_rows([(usize::MAX, vec![]), (usize::MAX, vec![])]).is_err());
    }
}
