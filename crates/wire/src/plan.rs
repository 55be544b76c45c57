//! The plan document.

use crate::error::{WireError, need};
use crate::state::{decision_to_wire, id_to_wire, read_decision, read_id};
use crate::v1;
use std::collections::BTreeMap;
use v1::plan::Base as WireBase;
use v1::schedule::Kind as WireKind;
use varuna_plan::document::{Recompute, ScheduleKind};
use varuna_plan::document::{source_rows, sources_of_rows};
use varuna_plan::layout::{SEGMENTS_MAX, UNITS_MAX};
use varuna_plan::{
    Base, EvaluationSteps, Generation, Layout, Pipeline, Plan, PlanIndex, Prediction, SampleRange,
    ScheduleSpec, SegmentRange, Shape, Spare, Stage, StepDeadline, WorkerId,
};

pub(crate) fn to_wire(plan: &Plan) -> v1::Plan {
    let shape = &plan.shape;
    let spare = |spare: &Spare| v1::Spare {
        worker: spare.worker.0,
        reason: spare.reason.clone(),
    };
    let address = |(worker, address): (&WorkerId, &String)| v1::PeerAddress {
        worker: worker.0,
        address: address.clone(),
    };
    v1::Plan {
        generation: plan.generation.0,
        parent: plan.parent.0,
        base: Some(base_to_wire(&plan.base)),
        layout: Some(layout_to_wire(plan.layout)),
        pipelines: shape.pipelines.iter().map(pipeline_to_wire).collect(),
        spares: shape.spares.iter().map(spare).collect(),
        micro_batch_size: shape.micro_batch_size,
        schedule: Some(schedule_to_wire(shape.schedule)),
        predicted: Some(v1::Prediction {
            step_ms: shape.predicted.step_ms,
            bubble: shape.predicted.bubble,
            move_ms: shape.predicted.move_ms,
            calibrated: shape.predicted.calibrated,
        }),
        sources: source_rows(&plan.sources).map(sources_to_wire).collect(),
        addresses: plan.addresses.iter().map(address).collect(),
        deadline: Some(deadline_to_wire(plan.deadline)),
        relay: plan.relay,
        tree_fan_out: plan.tree_fan_out,
        following: plan.following,
        parameters_first: plan.parameters_first,
        keepers: keepers_to_wire(&plan.keepers),
        evidence: ids_to_wire(&plan.evidence),
        reason: plan.reason.clone(),
    }
}

fn sources_to_wire((units, workers): (usize, &[WorkerId])) -> v1::Sources {
    v1::Sources {
        workers: ids_to_wire(workers),
        units: u32::try_from(units).unwrap_or(u32::MAX),
    }
}

fn keepers_to_wire(keepers: &[Option<WorkerId>]) -> Vec<v1::Keeper> {
    let rows = keepers.chunk_by(|a, b| a == b);
    let row = |row: &[Option<WorkerId>]| v1::Keeper {
        worker: row.first().copied().flatten().map(|worker| worker.0),
        units: u32::try_from(row.len()).unwrap_or(u32::MAX),
    };
    rows.map(row).collect()
}

/// Reads the keepers. Memory is allocated for at most as many units as a model can have.
fn read_keepers(rows: &[v1::Keeper]) -> Result<Vec<Option<WorkerId>>, WireError> {
    let most = UNITS_MAX;
    let mut keepers = Vec::new();
    for row in rows {
        let units = keepers.len().saturating_add(row.units as usize);
        if row.units == 0 || units > most {
            let found = format!("{} units after {}", row.units, keepers.len());
            let allowed = "rows of 1 unit or more, together no more than a model has";
            return Err(WireError::value("Plan", "keepers", found, allowed));
        }
        keepers.resize(units, row.worker.map(WorkerId));
    }
    Ok(keepers)
}

fn ids_to_wire(workers: &[WorkerId]) -> Vec<u64> {
    workers.iter().map(|worker| worker.0).collect()
}

fn base_to_wire(base: &Base) -> WireBase {
    match base {
        Base::Fixed {
            id,
            decision,
            checkpoint,
        } => WireBase::Fixed(v1::FixedBase {
            id: Some(id_to_wire(*id)),
            decision: decision.as_ref().map(decision_to_wire),
            checkpoint: *checkpoint,
        }),
        Base::AtSwitch { from } => WireBase::AtSwitch(v1::SwitchBase { from: from.0 }),
    }
}

fn pipeline_to_wire(pipeline: &Pipeline) -> v1::Pipeline {
    let stage = |stage: &Stage| v1::Stage {
        worker: stage.worker.0,
        first_segment: stage.segments.start,
        end_segment: stage.segments.end,
        recompute: stage
            .recompute
            .map_or(v1::Recompute::Unspecified, recompute_to_wire)
            .into(),
    };
    v1::Pipeline {
        stages: pipeline.stages.iter().map(stage).collect(),
        first_sample: pipeline.samples.start,
        end_sample: pipeline.samples.end,
    }
}

fn recompute_to_wire(recompute: Recompute) -> v1::Recompute {
    match recompute {
        Recompute::None => v1::Recompute::None,
        Recompute::Selective => v1::Recompute::Selective,
        Recompute::Full => v1::Recompute::Full,
    }
}

fn schedule_to_wire(schedule: ScheduleSpec) -> v1::Schedule {
    let kind = match schedule.kind {
        ScheduleKind::Gpipe => WireKind::Gpipe(v1::Gpipe {}),
        ScheduleKind::OneForwardOneBackward { warmup_factor } => {
            WireKind::OneForwardOneBackward(v1::OneForwardOneBackward { warmup_factor })
        }
        ScheduleKind::Interleaved { chunks } => WireKind::Interleaved(v1::Interleaved { chunks }),
    };
    v1::Schedule {
        kind: Some(kind),
        recompute: recompute_to_wire(schedule.recompute).into(),
    }
}

fn read_sources(rows: Vec<v1::Sources>) -> Result<Vec<Vec<WorkerId>>, WireError> {
    let rows = rows
        .into_iter()
        .map(|row| (row.units as usize, read_ids(row.workers)));
    sources_of_rows(rows).map_err(|error| WireError::value("Plan", "sources", error, "what a model needs"))
}

fn layout_to_wire(layout: Layout) -> v1::Layout {
    let Layout {
        segments,
        tied,
        ranges,
    } = layout;
    // Older builds must not mistake ranges for segments.
    let (segments, ranges, divided_segments) = match ranges {
        1 => (segments, 0, 0),
        _ => (u32::MAX, ranges, segments),
    };
    v1::Layout {
        segments,
        tied,
        ranges,
        divided_segments,
    }
}

fn read_layout(layout: v1::Layout) -> Result<Layout, WireError> {
    let ranges = layout.ranges.max(1);
    let (field, segments) = match ranges {
        1 => ("segments", layout.segments),
        _ => ("divided_segments", layout.divided_segments),
    };
    if segments > SEGMENTS_MAX {
        return Err(WireError::value("Layout", field, segments, "at most 1048576"));
    }
    let read = Layout::new(segments, layout.tied).in_ranges(ranges).checked();
    let allowed = "at most 64, with 1048577 units in all";
    read.map_err(|_| WireError::value("Layout", "ranges", ranges, allowed))
}

/// Reads a plan. Whether its parts fit together is checked by `varuna_plan::check`.
pub(crate) fn read(plan: v1::Plan) -> Result<Plan, WireError> {
    const M: &str = "Plan";
    if plan.generation == 0 {
        return Err(WireError::value(M, "generation", 0, "1 or more"));
    }
    let layout = read_layout(need(plan.layout, M, "layout")?)?;
    let predicted = need(plan.predicted, M, "predicted")?;
    let spare = |spare: v1::Spare| Spare {
        worker: WorkerId(spare.worker),
        reason: spare.reason,
    };
    let mut addresses = BTreeMap::new();
    for v1::PeerAddress { worker, address } in plan.addresses {
        if addresses.insert(WorkerId(worker), address).is_some() {
            let found = format!("worker {} twice", WorkerId(worker));
            return Err(WireError::value(
                M,
                "addresses",
                found,
                "each worker at most once",
            ));
        }
    }
    Ok(Plan {
        generation: Generation(plan.generation),
        parent: Generation(plan.parent),
        base: read_base(need(plan.base, M, "base")?)?,
        layout,
        shape: Shape {
            pipelines: plan
                .pipelines
                .into_iter()
                .map(read_pipeline)
                .collect::<Result<_, _>>()?,
            spares: plan.spares.into_iter().map(spare).collect(),
            micro_batch_size: plan.micro_batch_size,
            schedule: read_schedule(need(plan.schedule, M, "schedule")?)?,
            predicted: Prediction {
                step_ms: predicted.step_ms,
                bubble: predicted.bubble,
                move_ms: predicted.move_ms,
                calibrated: predicted.calibrated,
            },
        },
        sources: read_sources(plan.sources)?,
        addresses,
        deadline: read_deadline(need(plan.deadline, M, "deadline")?),
        relay: plan.relay,
        tree_fan_out: plan.tree_fan_out,
        following: plan.following,
        parameters_first: plan.parameters_first,
        keepers: read_keepers(&plan.keepers)?,
        evidence: read_ids(plan.evidence),
        reason: plan.reason,
        index: PlanIndex::default(),
    })
}

fn read_ids(workers: Vec<u64>) -> Vec<WorkerId> {
    workers.into_iter().map(WorkerId).collect()
}

fn read_base(base: WireBase) -> Result<Base, WireError> {
    Ok(match base {
        WireBase::Fixed(fixed) => Base::Fixed {
            id: read_id(need(fixed.id, "FixedBase", "id")?)?,
            decision: fixed.decision.map(read_decision).transpose()?,
            checkpoint: fixed.checkpoint,
        },
        WireBase::AtSwitch(switch) => Base::AtSwitch {
            from: Generation(switch.from),
        },
    })
}

fn read_pipeline(pipeline: v1::Pipeline) -> Result<Pipeline, WireError> {
    let stage = |stage: v1::Stage| {
        Ok(Stage {
            worker: WorkerId(stage.worker),
            segments: SegmentRange {
                start: stage.first_segment,
                end: stage.end_segment,
            },
            recompute: read_recompute(stage.recompute, "Stage")?,
        })
    };
    Ok(Pipeline {
        stages: pipeline
            .stages
            .into_iter()
            .map(stage)
            .collect::<Result<_, WireError>>()?,
        samples: SampleRange {
            start: pipeline.first_sample,
            end: pipeline.end_sample,
        },
    })
}

/// Reads what is recomputed; none where it is unspecified.
fn read_recompute(recompute: i32, message: &'static str) -> Result<Option<Recompute>, WireError> {
    Ok(match v1::Recompute::try_from(recompute) {
        Ok(v1::Recompute::Unspecified) => None,
        Ok(v1::Recompute::None) => Some(Recompute::None),
        Ok(v1::Recompute::Selective) => Some(Recompute::Selective),
        Ok(v1::Recompute::Full) => Some(Recompute::Full),
        Err(_) => return Err(WireError::value(message, "recompute", recompute, "0 to 3")),
    })
}

fn read_schedule(schedule: v1::Schedule) -> Result<ScheduleSpec, WireError> {
    const M: &str = "Schedule";
    let kind = match need(schedule.kind, M, "kind")? {
        WireKind::Gpipe(v1::Gpipe {}) => ScheduleKind::Gpipe,
        WireKind::OneForwardOneBackward(v1::OneForwardOneBackward { warmup_factor }) => {
            ScheduleKind::OneForwardOneBackward { warmup_factor }
        }
        WireKind::Interleaved(v1::Interleaved { chunks }) => ScheduleKind::Interleaved { chunks },
    };
    let recompute = read_recompute(schedule.recompute, M)?;
    Ok(ScheduleSpec {
        kind,
        recompute: recompute.ok_or_else(|| WireError::value(M, "recompute", 0, "1 to 3"))?,
    })
}

fn deadline_to_wire(deadline: StepDeadline) -> v1::StepDeadline {
    v1::StepDeadline {
        step_ns: deadline.step_ns,
        floor_ns: deadline.floor_ns,
        doublings: deadline.doublings,
        evaluation: deadline.evaluation.map(|e| v1::EvaluationSteps {
            interval_steps: e.interval_steps,
            batches: e.batches,
        }),
    }
}

fn read_deadline(deadline: v1::StepDeadline) -> StepDeadline {
    StepDeadline {
        step_ns: deadline.step_ns,
        floor_ns: deadline.floor_ns,
        doublings: deadline.doublings,
        evaluation: deadline.evaluation.map(|e| EvaluationSteps {
            interval_steps: e.interval_steps,
            batches: e.batches,
        }),
    }
}
