// norm, rotation by position and the way into the cache, head by head
#include "../native/export.h"
#include "../native/heads.h"

namespace MINNOW_ISA {

constexpr int64_t kHeadsPerItem = 16;

void qk_norm_rope_write(Team& team, float* x, int64_t x_stride, int64_t num_rows, const HeadPart* parts,
                        int64_t num_parts, const int32_t* positions, const float* inv_freq, int64_t num_frequencies,
                        float eps, float offset, const int64_t* slots, bool is_bf16) {
    int64_t num_heads = 0, widest = 0;
    for (int64_t p = 0; p < num_parts; ++p) {
        num_heads += parts[p].num_heads;
        widest = parts[p].norm.width > widest ? parts[p].norm.width : widest;
    }
    Scratch memory = team.scratch();
    float* cosines = memory.take<float>(num_frequencies);
    float* sines = memory.take<float>(num_frequencies);
    float* turned = memory.take<float>(widest);
    float* turned_alone = memory.take<float>(widest);  // before it is mixed
    int64_t row_of_angles = -1;  // a thread's items of one row share them

    const auto turn = [&](const float* head, const HeadPart& part, int64_t h, int64_t row, float* y) {
        if (row != row_of_angles) angles_of(positions[row], inv_freq, num_frequencies, cosines, sines);
        row_of_angles = row;
        const int64_t width = part.norm.width;
        if (part.norm.codes != nullptr) {
            norm_row(head, part.norm, y, width, eps, offset);
        } else if (y != head) {
            memcpy(y, head, width * sizeof(float));
        }
        turn_head(y, cosines, sines, num_frequencies);
        if (part.mix != nullptr) {
            memcpy(turned_alone, y, width * sizeof(float));
            mix_head(turned_alone, part.mix + h / part.heads_per_mix * width * width, width, y);
        }
        if (is_bf16) round_row(y, width);
    };

    const int64_t items_per_row = (num_heads + kHeadsPerItem - 1) / kHeadsPerItem;
    team.for_each(num_rows * items_per_row, [&](int64_t item) {
        const int64_t row = item / items_per_row;
        int64_t first = item % items_per_row * kHeadsPerItem, last = first + kHeadsPerItem;
        for (int64_t p = 0; p < num_parts; first -= parts[p].num_heads, last -= parts[p].num_heads, ++p) {
            const HeadPart& part = parts[p];
            if (part.cache != nullptr && slots[row] < 0) continue;
            for (int64_t h = first > 0 ? first : 0; h < last && h < part.num_heads; ++h) {
                float* head = x + row * x_stride + part.start + h * part.norm.width;
                float* y = part.cache == nullptr ? head : turned;
                if (part.is_turned) turn(head, part, h, row, y);
                if (part.cache != nullptr) write_head(part.is_turned ? y : head, *part.cache, slots[row], h);
            }
        }
    });
}

}  // namespace MINNOW_ISA

// x f32 [num_rows x_stride], turned in place; parts: `struct HeadPart`; slots may be null where no part has a cache.
MINNOW_EXPORT(qk_norm_rope_write)
(void* x, int64_t x_stride, int64_t num_rows, const void* parts, int64_t num_parts, const void* positions,
 const void* inv_freq, int64_t num_frequencies, float eps, float offset, const void* slots, int64_t is_bf16) {
    using namespace MINNOW_ISA;
    run(num_rows * x_stride > 20'000, [&](Team& team) {
        qk_norm_rope_write(team, static_cast<float*>(x), x_stride, num_rows, static_cast<const HeadPart*>(parts),
                           num_parts, static_cast<const int32_t*>(positions), static_cast<const float*>(inv_freq),
                           num_frequencies, eps, offset, static_cast<const int64_t*>(slots), is_bf16 != 0);
    });
}
