// The threads of a forward, for tests: their number, the choice of it, and the team at work on phases of integers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "bindings/bindings.h"
#include "system/cpu_count.h"
#include "system/thread_choice.h"
#include "system/thread_team.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

// `phases` phases of one shift, each of which makes every item one more than some item was after the phase before. Returns the
// items, all equal to `phases`, and how many each thread has done.
py::tuple run_phases(ThreadTeam& team, int phases, int items, int working, int most) {
    std::vector<int> values(static_cast<size_t>(items), 0);
    std::vector<int> before;
    std::vector<int> done(static_cast<size_t>(team.threads()), 0);
    {
        const py::gil_scoped_release release;
        const ThreadTeam::Shift shift(team, working);
        for (int phase = 0; phase < phases; ++phase) {
            before = values;
            team.run(items, [&](int first, int last, int thread) {
                for (int item = first; item < last; ++item) {
                    values[item] += before[(item + 7 * phase) % items] - values[item] + 1;
                }
                done[thread] += last - first;
            }, most);
        }
    }
    return py::make_tuple(values, done);
}

}  // namespace

void bind_threads(py::module_& m) {
    py::class_<ThreadChoice>(m, "ThreadChoice")
        .def(py::init<int>(), py::arg("threads"))
        .def("choose", &ThreadChoice::choose, py::arg("rows"))
        .def("report", &ThreadChoice::report, py::arg("rows"), py::arg("threads"), py::arg("seconds"), py::arg("lost"));
    py::class_<ThreadTeam>(m, "ThreadTeam")
        .def(py::init<int>(), py::arg("threads"))
        .def("run_phases", &run_phases, py::arg("phases"), py::arg("items"), py::arg("working"), py::arg("most") = ThreadTeam::kAnyNumber);
    m.def("usable_cores", &usable_cores, py::arg("root") = "");
}

}  // namespace tokenloom
