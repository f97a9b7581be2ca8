// tokenloom.native_ext._core.Cells: the cells as Python sees them, for unit tests. Slots and copies become tuples.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/cells.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

using PyAppend = std::pair<SequenceId, std::vector<Token>>;

template <typename T>
std::vector<T> listed(std::span<const T> span) {
    return {span.begin(), span.end()};
}

Reservation reserve(Cells& cells, const std::vector<PyAppend>& batch) {
    std::vector<Append> appends;
    appends.reserve(batch.size());
    for (const auto& [sequence, tokens] : batch) {
        appends.push_back({sequence, tokens});
    }
    return cells.reserve(appends);
}

std::vector<std::tuple<SequenceId, std::int32_t, Page, std::int32_t>> slots(const Reservation& reservation) {
    std::vector<std::tuple<SequenceId, std::int32_t, Page, std::int32_t>> result;
    for (const Slot& slot : reservation.slots()) {
        result.emplace_back(slot.sequence, slot.position, slot.page, slot.offset);
    }
    return result;
}

std::vector<std::tuple<Page, Page, std::int32_t>> copies(const Reservation& reservation) {
    std::vector<std::tuple<Page, Page, std::int32_t>> result;
    for (const PageCopy& copy : reservation.copies()) {
        result.emplace_back(copy.from, copy.to, copy.positions);
    }
    return result;
}

py::dict counters(const Cells& cells) {
    const CellsCounters& counts = cells.counters();
    py::dict result;
    result["tokens"] = counts.tokens;
    result["reservations"] = counts.reservations;
    result["rollbacks"] = counts.rollbacks;
    result["refusals"] = counts.refusals;
    result["clones"] = counts.clones;
    result["rewinds"] = counts.rewinds;
    result["copies"] = counts.copies;
    result["copied_positions"] = counts.copied_positions;
    return result;
}

}  // namespace

void bind_cells(py::module_& m) {
    py::class_<Reservation>(m, "Reservation", "An open batch of appends: commit it, or it is rolled back.")
        .def_property_readonly("slots", &slots, "(sequence, position, page, offset) of every token, in batch order.")
        .def_property_readonly("copies", &copies, "(from page, to page, positions), to be made before any write.")
        .def_property_readonly("taken", &Reservation::taken)
        .def_property_readonly("pages_end", &Reservation::pages_end)
        .def_property_readonly("open", &Reservation::open)
        .def("commit", &Reservation::commit)
        .def("rollback", &Reservation::rollback);

    py::class_<Cells>(m, "Cells", "The pages of KV cells, as integers. See cells.h for the contract.")
        .def(py::init<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(), py::arg("max_pages"),
             py::arg("max_sequences"), py::arg("context"), py::arg("page_size") = Cells::default_page_size)
        .def("create", &Cells::create)
        .def("remove", &Cells::remove, py::arg("sequence"))
        .def(
            "clone",
            [](Cells& cells, SequenceId sequence, std::optional<std::int64_t> upto) {
                return upto ? cells.clone(sequence, *upto) : cells.clone(sequence);
            },
            py::arg("sequence"), py::arg("upto") = py::none())
        .def("rewind", &Cells::rewind, py::arg("sequence"), py::arg("to"))
        .def("reserve", &reserve, py::arg("batch"), py::keep_alive<0, 1>(),
             "Place (sequence, tokens) pairs. Raises BatchError, ContextFull or CellsExhausted and changes nothing.")
        .def(
            "pages_needed",
            [](const Cells& cells, const py::dict& growth) {
                std::vector<std::pair<SequenceId, std::int64_t>> pairs;
                for (const auto& [sequence, tokens] : growth) {
                    pairs.emplace_back(sequence.cast<SequenceId>(), tokens.cast<std::int64_t>());
                }
                return cells.pages_needed(pairs);
            },
            py::arg("growth"))
        .def("pages_held", &Cells::pages_held, py::arg("sequence"))
        .def("length", &Cells::length, py::arg("sequence"))
        .def(
            "tokens", [](const Cells& cells, SequenceId sequence) { return listed(cells.tokens(sequence)); },
            py::arg("sequence"))
        .def(
            "pages", [](const Cells& cells, SequenceId sequence) { return listed(cells.pages(sequence)); },
            py::arg("sequence"))
        .def("exists", &Cells::exists, py::arg("sequence"))
        .def("sequences", &Cells::sequences)
        .def("owners", &Cells::owners, py::arg("page"))
        .def("check", &Cells::check, "Raise RuntimeError when an invariant is broken.")
        .def_property_readonly("page_size", &Cells::page_size)
        .def_property_readonly("max_pages", &Cells::max_pages)
        .def_property_readonly("max_sequences", &Cells::max_sequences)
        .def_property_readonly("context", &Cells::context)
        .def_property_readonly("pages_used", &Cells::pages_used)
        .def_property_readonly("pages_free", &Cells::pages_free)
        .def_property_readonly("pages_end", &Cells::pages_end)
        .def_property_readonly("counters", &counters);
}

}  // namespace tokenloom
