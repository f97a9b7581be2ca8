#include "packing/packing.h"

#include <optional>

#include "system/errors.h"
#include "packing/packing_lock.h"

namespace tokenloom {

namespace {

PackedKey key_of(const std::vector<PackSource>& sources, const std::string& fingerprint) {
    PackedKey key{fingerprint, {}};
    for (const PackSource& s : sources) {
        key.matrices.push_back({s.type, s.rows, s.columns, PackedMatrix::bytes_of(s.type, s.rows, s.columns)});
    }
    return key;
}

std::deque<PackedMatrix> matrices_in(const PackedCache& cache, const std::vector<PackSource>& sources) {
    std::deque<PackedMatrix> matrices;
    for (size_t i = 0; i < sources.size(); ++i) {
        matrices.emplace_back(sources[i].type, sources[i].rows, sources[i].columns, cache.matrix(i));
    }
    return matrices;
}

// Matrices begin at cache lines.
uint64_t in_lines(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

PackedWeights pack_all(const std::vector<PackSource>& sources, const Packing& packing, const std::function<void(const PackSource&)>& done) {
    const PackedKey key = key_of(sources, packing.fingerprint);
    const uint64_t total = key.bytes();
    const Progress progress = packing.progress ? packing.progress : [](uint64_t, uint64_t) {};
    PackedWeights out;
    const auto use = [&](std::unique_ptr<PackedCache> cache) {
        out.matrices = matrices_in(*cache, sources);
        out.cache = std::move(cache);
    };

    std::string why;
    const auto map_file = [&] {
        std::unique_ptr<PackedCache> cache = PackedCache::open(packing.cache, key, progress, why);
        if (cache) {
            use(std::move(cache));
            out.note = "packed weights mapped from " + packing.cache;
        }
        return out.cache != nullptr;
    };
    const auto not_kept = [&](const std::string& because) {
        out.failed = true;
        out.note += "packed weights are not kept: " + because;
    };

    std::optional<PackingLock> lock;
    std::unique_ptr<PackedCacheWriter> writer;
    if (!packing.cache.empty()) {
        if (map_file()) {
            return out;
        }
        lock.emplace(packing.cache + ".lock");
        const bool ours = lock->take(packing.patience, [&] { progress(0, total); });
        if (ours && map_file()) {  // another process has written it meanwhile
            return out;
        }
        out.failed = !why.empty();
        out.note = why.empty() ? "" : packing.cache + " is not used, for " + why + "; ";
        if (!ours) {
            not_kept("the process that packs them for " + packing.cache + " does not get on");
        } else {
            try {
                writer = std::make_unique<PackedCacheWriter>(packing.cache, key);
            } catch (const EngineError& error) {
                not_kept(error.what());
            }
        }
    }
    if (writer) {
        // One matrix at a time in memory, and then all of them from the file, as the next worker will have them.
        try {
            uint64_t bytes = 0;
            for (const PackSource& s : sources) {
                const PackedMatrix matrix(s.type, s.data, s.rows, s.columns);
                writer->add(matrix.data());
                lock->getting_on();
                done(s);
                progress(bytes += matrix.bytes(), total);
            }
            std::unique_ptr<PackedCache> cache = PackedCache::open(packing.cache, key, [](uint64_t, uint64_t) {}, why);
            if (!cache) {  // else another process was quicker, where there are no locks, and has its pages in memory already
                writer->commit();
                cache = PackedCache::open(packing.cache, key, [](uint64_t, uint64_t) {}, why);
            }
            if (!cache) {
                throw EngineError(packing.cache + " cannot be read back: " + (why.empty() ? "it is gone" : why));
            }
            use(std::move(cache));
            out.note += "packed weights kept in " + packing.cache;
            return out;
        } catch (const EngineError& error) {
            not_kept(error.what());
        }
    }
    lock.reset();  // there is no file to wait for
    if (sources.empty()) {
        return out;
    }
    uint64_t room = 0;
    for (const PackedShape& shape : key.matrices) {
        room += in_lines(shape.bytes);
    }
    out.memory.emplace(room);
    uint8_t* place = out.memory->data();
    uint64_t bytes = 0;
    for (const PackSource& s : sources) {
        const PackedMatrix& matrix = out.matrices.emplace_back(s.type, s.data, s.rows, s.columns, place);
        place += in_lines(matrix.bytes());
        done(s);
        progress(bytes += matrix.bytes(), total);
    }
    return out;
}

}  // namespace tokenloom
