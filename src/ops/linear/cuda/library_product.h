#pragma once

#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// library_products() by the library's candidate of that rank, or the last if it has fewer; it
// itself takes the first.
bool library_products_by(Stream& stream, const Products& products, int rank);
// How many candidates there are, of at most `most`; 0 if library_products() cannot.
int library_candidates(Stream& stream, const Products& products, int most);

}  // namespace braid::cuda
