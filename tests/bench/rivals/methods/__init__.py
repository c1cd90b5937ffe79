# SPDX-License-Identifier: Apache-2.0
"""One file for each rival: WAYS, a class of rivals.pair.Way for each name, or measure() where Way does not fit."""
