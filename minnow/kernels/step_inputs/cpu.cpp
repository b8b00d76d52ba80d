// ids, positions and slots of a step's tokens, out of the request table
#include "../native/export.h"

// Shapes as in reference.py; row_blocks has rows of row_stride, of which num_blocks are copied to block_table.
MINNOW_EXPORT(step_inputs)
(const void* ids, const void* rows, const void* starts, const void* query_start, const void* last_token,
 const void* row_blocks, void* filled, void* positions, void* slots, void* block_table, int64_t num_sequences,
 int64_t num_blocks, int64_t row_stride, int64_t block_size) {
    const int32_t* given = static_cast<const int32_t*>(ids);
    const int32_t* first = static_cast<const int32_t*>(query_start);
    for (int64_t s = 0; s < num_sequences; ++s) {
        const int64_t row = static_cast<const int32_t*>(rows)[s];
        const int32_t* blocks = static_cast<const int32_t*>(row_blocks) + row * row_stride;
        int32_t* table = static_cast<int32_t*>(block_table) + s * num_blocks;
        for (int64_t m = 0; m < num_blocks; ++m) table[m] = blocks[m];
        for (int64_t t = first[s]; t < first[s + 1]; ++t) {
            const int64_t position = static_cast<const int32_t*>(starts)[s] + t - first[s];
            static_cast<int32_t*>(filled)[t] = given[t] < 0 ? static_cast<const int32_t*>(last_token)[row] : given[t];
            static_cast<int32_t*>(positions)[t] = static_cast<int32_t>(position);
            const int64_t block = position / block_size;
            static_cast<int64_t*>(slots)[t] = blocks[block] * block_size + position % block_size;
        }
    }
}
