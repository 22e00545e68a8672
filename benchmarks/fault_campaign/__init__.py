"""Disturbs runs at random moments, resumes them, and compares their rows with those of an undisturbed run.

    python -m benchmarks.fault_campaign --faults 1000 --jobs 12 --minutes 9 --output faults
    python -m benchmarks.fault_campaign --backend vllm --victims engine --kinds kill --faults 20

`faults.py` says what is done to a process, `campaign.py` when, and what must hold afterwards. Everything is greedy, in float32, on a tiny
checkpoint. The tests do each fault once; this does as many as you want.
"""
