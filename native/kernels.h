// The table of kernels that every instruction set fills in.
//
// A kernel is a pure function of its arguments: it reads and writes the memory it
// is given and nothing else.  Splitting work among threads, workspaces and the
// order of passes belong to the drivers, which are compiled once.
#pragma once

#include <cstdint>

#include "rounding.h"
#include "stream.h"

namespace prism {

constexpr std::int64_t kGroup = 16;      // columns that share a generator state
constexpr std::int64_t kTile = 1024;     // elements of an elementwise tile
constexpr std::int64_t kTileLanes = 64;  // columns of an elementwise tile
constexpr std::int64_t kKBlock = 192;    // products accumulated from zero
constexpr std::int64_t kRowPack = 8;     // rows packed side by side
constexpr std::int64_t kReduceLanes = 32;
constexpr std::int64_t kSquareLanes = 8;  // of sums of squares
constexpr std::int64_t kReduceFan = 16;
constexpr std::int64_t kReduceChunk = kReduceLanes * kReduceFan * kReduceFan * kReduceFan;
constexpr std::int64_t kScanBlock = 256;

// Where an index of a contraction points: an offset in elements, and its share of
// the spatial coordinates, which must stay inside the input.
struct Axis {
  std::int64_t offset;
  std::int32_t at[3];
};

// Up to eight rows of the left operand, side by side for every k.
template <class T>
struct PackRows {
  const T* a;
  const std::int64_t* row_offset;
  std::int64_t rows;
  const std::int64_t* k_offset;
  std::int64_t k_count;
  void* out;  // [k_count][kRowPack] of the policy's packed type, 8 bytes each at most
};

// Sixteen columns of the right operand, side by side for every k.
template <class T>
struct PackPanel {
  const T* b;
  const Axis* k;
  std::int64_t k_count;
  const std::int64_t* run_end;  // ends of the runs of k whose elements are neighbours in memory
  std::int64_t runs;
  const Axis* column;
  std::int64_t columns;
  std::int32_t size[3];
  bool bounded;  // some (k, column) may lie outside the input and then reads as zero
  T* out;        // [k_count][kGroup]
};

// Rows times one panel, accumulated in blocks along k.
template <class T>
struct Multiply {
  const void* a;  // packed rows, kRowPack at a time, each k_count long
  const T* panel;
  std::int64_t rows;
  std::int64_t k_begin, k_count, k_total;  // k_begin is a multiple of kKBlock
  std::uint64_t row, block, group;         // stream coordinates of the first row, block, column
  double* totals;                          // [rows][kGroup] between chunks of k
  T* out;
  const std::int64_t* out_row;     // offset of each row in `out`
  const std::int64_t* out_column;  // offset of each column in `out`
  std::int64_t columns;
  bool contiguous;  // all sixteen columns lie side by side in `out`
  bool chained;     // blocks continue the accumulation instead of starting from zero
};

struct Instruction {
  Op op;
  int a, b, c;
};

constexpr int kMaxInputs = 8;
constexpr int kMaxScalars = 8;
constexpr int kMaxInstructions = 24;

// One elementwise tile: inputs already contiguous in the tile.
template <class T>
struct ElementwiseTile {
  const Instruction* code;
  int instructions;
  int inputs, scalars;
  const void* input[kMaxInputs];  // T, or double where the code rounds it
  const T* scalar;
  T* out;
  std::int64_t count;  // elements of this tile, at most kTile
  std::uint64_t row;   // number of the tile
  const int* slot;     // where in the scratch each result goes
  T* scratch;          // [slots][kTile]
};

// Rows of a reduction whose terms lie `step` apart, the rows themselves side by side.
template <class T>
struct TurnRows {
  const T* from;
  std::int64_t step, rows, count;
  T* to;  // row r from to + r * pitch
  std::int64_t pitch;
};

// Chunks of one reduction row, contiguous in memory.
template <class T>
struct ReduceChunk {
  Reduction kind;
  const T* x;
  const T* y;  // only for dot
  std::int64_t count;
  std::uint64_t row;  // stream row of the chunk
  bool last;          // the chunk is the whole row: its last operation is ranged
};

struct ReduceTotals {
  Reduction kind;
  const double* chunk;  // totals of the chunks
  std::int64_t chunks;
  std::uint64_t row;
};

// Up to sixteen rows of a scan, interleaved: x[k * kGroup + lane].
template <class T>
struct ScanRows {
  bool product;
  const T* x;
  T* out;
  std::int64_t count;  // elements of this piece of the rows, starting at a block
  std::int64_t begin;  // index of its first element
  T* carry;            // [kGroup] running value, read unless begin is 0, and written
  std::uint64_t row;   // stream row
};

// Additions of contiguous source elements into rows of the destination.
template <class T>
struct Accumulate {
  const std::int64_t* index;
  const T* source;  // contiguous (n, inner)
  std::int64_t inner;
  T* out;
  std::int64_t first, count;          // flat elements [first, first + count) of the source
  std::int64_t keep_begin, keep_end;  // only rows in this range are written
};

// The kernels for tensors of one element type, float or double.
template <class T>
struct Primitives {
  void (*pack_rows)(const Rounding&, const PackRows<T>&);
  void (*pack_panel)(const PackPanel<T>&);
  void (*multiply)(const Rounding&, const Block& key, const Multiply<T>&);
  void (*elementwise)(const Rounding&, const Block& key, const ElementwiseTile<T>&);
  void (*turn_rows)(const TurnRows<T>&);
  double (*reduce_chunk)(const Rounding&, const Block& key, const ReduceChunk<T>&);
  double (*reduce_totals)(const Rounding&, const Block& key, const ReduceTotals&);
  void (*scan)(const Rounding&, const Block& key, const ScanRows<T>&);
  void (*accumulate)(const Rounding&, const Block& key, const Accumulate<T>&);
};

struct Kernels {
  const char* name;
  Primitives<float> single;
  Primitives<double> wide;

  template <class T>
  const Primitives<T>& of() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return single;
    } else {
      return wide;
    }
  }
};

}  // namespace prism
