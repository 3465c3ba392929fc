#!/bin/bash
# Shards by 16 independent jobs of an array, and one that completes the folder:
#   sbatch --array=1-16 --requeue recipes/shards-slurm.sh
#   sbatch --dependency=afterok:JOB recipes/shards-slurm.sh --finish
# A job that failed is submitted again by its number (--array=7); --finish names what is missing.
# No dependency is needed where --finish is given by hand.
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=12:00:00
set -e
share=(--workers 8 --threads 2 --units "$SLURM_ARRAY_TASK_ID/16")
[ "$1" = --finish ] && share=(--finish)
exec bert-tf shards --corpus /data/text/ --tokenizer /data/vocab/ --output /data/shards/ \
  --masking dynamic --max_seq_length 128 512 "${share[@]}"
