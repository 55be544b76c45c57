//! Reads a unit of a layout from a checkpoint whose units may be other ranges of the segment. Files are read one after the other, and of each only
//! what belongs to the unit is kept: so this takes the memory of the unit's state and of one such part, however large the segment is.

use super::{damaged, entry_of, of_length};
use crate::CheckpointError;
use crate::location::Location;
use crate::manifest::Manifest;
use crate::name::unit_name;
use crate::shard::{HEADER_GUESS, HEADERS, Keep, Shard, ShardReader, ShardTensor};
use futures::{StreamExt, TryStreamExt};
use varuna_plan::{Layout, Unit};

impl Location {
    /// Reads a unit of a layout, whatever ranges the checkpoint's units are: ranges of the same layout are read directly, others are joined
    /// and cut. `arrived` is called for each part that arrives.
    ///
    /// # Errors
    /// The store fails, or a shard is missing or damaged.
    pub async fn load_unit(
        &self,
        manifest: &Manifest,
        unit: (Layout, Unit),
        arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        self.load_unit_in_order(manifest, unit, None, arrived).await
    }

    /// The same, with all parameters of the unit's segment in an order that may differ from the checkpoint's, as for a model that was
    /// exported again. The content of a range depends on it: if it differs, all ranges are joined, reordered and cut.
    ///
    /// # Errors
    /// The same errors, and if the segment has other parameters than these.
    pub async fn load_unit_in_order(
        &self,
        manifest: &Manifest,
        (layout, unit): (Layout, Unit),
        wanted: Option<&[ShardTensor]>,
        arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        let own = manifest.layout;
        let (id, whole) = (manifest.state, layout.whole_of(unit));
        let name = unit_name(layout, unit);
        let is_same = own.ranges == layout.ranges;
        // The checkpoint is sound.
        let unsuitable = |why: String| CheckpointError::Unsuitable { id, why };
        if is_same && (own.ranges == 1 || wanted.is_none()) {
            let shard = self.load(manifest, &name, arrived).await?;
            return match wanted {
                Some(wanted) => shard.in_order(wanted).map_err(unsuitable),
                None => Ok(shard),
            };
        }
        let described = self.described(manifest, whole).await?;
        let other = wanted.filter(|wanted| described.tensors.as_slice() != *wanted);
        let Some(wanted) = other else {
            return match is_same {
                true => self.load(manifest, &name, arrived).await,
                false => self.joined(manifest, described, (layout, unit), arrived).await,
            };
        };
        let undivided = (layout.undivided(), whole);
        let shard = self.joined(manifest, described, undivided, arrived).await?;
        let shard = shard.in_order(wanted).map_err(unsuitable)?;
        if layout.ranges == 1 {
            return Ok(shard);
        }
        let elements = layout.elements_of(unit, shard.parameters());
        let cut = shard.range(name, elements);
        cut.map_err(|why| damaged(id, &shard.unit, why))
    }

    /// Reads a unit of the segment that is described, from the ranges that have a part of it.
    async fn joined(
        &self,
        manifest: &Manifest,
        described: Shard,
        (layout, unit): (Layout, Unit),
        mut arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        let (own, id) = (manifest.layout, manifest.state);
        let (name, all) = (unit_name(layout, unit), described.elements());
        let elements = layout.elements_of(unit, all);
        let mut shard = match layout.ranges {
            1 => described,
            _ => {
                let part = described.part(name.clone(), &elements);
                part.map_err(|why| damaged(id, &name, why))?
            }
        };
        for range in own.ranges_of(layout.whole_of(unit)) {
            let of_range = own.elements_of(range, all);
            let start = of_range.start.max(elements.start);
            let end = of_range.end.min(elements.end);
            if start >= end {
                continue;
            }
            let name = unit_name(own, range);
            let keep = Keep::Elements {
                start: start - of_range.start,
                end: end - of_range.start,
            };
            let part = self.read(manifest, &name, keep, &mut arrived).await?;
            let filled = shard.fill(start - elements.start, part);
            filled.map_err(|why| damaged(id, &name, why))?;
        }
        Ok(shard)
    }

    /// A segment as the headers of the checkpoint's ranges describe it, without its data. This needs all headers: one alone does not tell which
    /// part it has of a parameter that begins before it and ends after it.
    async fn described(&self, manifest: &Manifest, whole: Unit) -> Result<Shard, CheckpointError> {
        let own = manifest.layout;
        let names: Vec<String> = own.ranges_of(whole).map(|range| unit_name(own, range)).collect();
        let headers = names.into_iter().map(|name| self.header(manifest, name));
        let headers = futures::stream::iter(headers).buffered(HEADERS);
        let ranges: Vec<Shard> = headers.try_collect().await?;
        let name = unit_name(own.undivided(), whole);
        let joined = Shard::joined(name.clone(), ranges);
        joined.map_err(|why| damaged(manifest.state, &name, why))
    }

    /// A unit's shard as its header describes it, without its data.
    async fn header(&self, manifest: &Manifest, unit: String) -> Result<Shard, CheckpointError> {
        let id = manifest.state;
        let entry = entry_of(manifest, &unit)?;
        let path = self.path(id, &entry.file);
        let length = of_length(id, entry, self.inner.head(&path).await, |meta| meta.size)?.size;
        let mut reader = ShardReader::new(id, &unit, length, Keep::Nothing);
        let mut at = 0;
        while at < length {
            let end = length.min(at + HEADER_GUESS);
            reader.push(&self.inner.get_range(&path, at..end).await?)?;
            if let Some(shard) = reader.described() {
                return Ok(shard);
            }
            at = end;
        }
        Err(damaged(id, &entry.file, "it is cut short".into()))
    }
}
