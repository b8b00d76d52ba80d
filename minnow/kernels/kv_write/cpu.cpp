// keys, values or index keys into their slots
#include "../native/export.h"
#include "../native/heads.h"

// values f32 [num_tokens num_heads width]; cache: `struct Cache`; slots i64 [num_tokens], -1 writes nothing.
MINNOW_EXPORT(kv_write)(const void* values, const void* cache, const void* slots, int64_t num_tokens) {
    using namespace MINNOW_ISA;
    const Cache& place = *static_cast<const Cache*>(cache);
    const int64_t token_width = place.num_heads * place.width;
    run(num_tokens * token_width > 20'000, [&](Team& team) {
        team.for_each(num_tokens, [&](int64_t token) {
            const int64_t slot = static_cast<const int64_t*>(slots)[token];
            const float* x = static_cast<const float*>(values) + token * token_width;
            for (int64_t head = 0; slot >= 0 && head < place.num_heads; ++head) {
                write_head(x + head * place.width, place, slot, head);
            }
        });
    });
}
